"""What an application connects or listens with: its own key, and the keys of the others that it trusts."""

import os
from collections.abc import Mapping, Sequence

from bstar.errors import ConfigurationError
from bstar.security.keys import KeyPair, read_key, read_public_key
from bstar.security.principals import Patterns, Principal, Principals, is_public_key

KEY_VARIABLE = "BSTAR_KEY"
SERVERS_VARIABLE = "BSTAR_SERVER_KEYS"


class Security:
    """CURVE for the connections of a client, a worker or a node.

    ``key`` is a ``KeyPair`` or the path of a ``.key`` file. ``servers`` are the public keys of the nodes, as
    paths of ``.pub`` files or in Z85: a connection is good if the node proves one of them. So a node gets a
    new key without an outage: add the new key here, restart the node with it, remove the old one.

    Raises ConfigurationError for files that are no keys, and without a server's key.
    """

    def __init__(
        self, key: KeyPair | str | os.PathLike[str], *, servers: Sequence[str | bytes | os.PathLike[str]]
    ) -> None:
        self.key = key if isinstance(key, KeyPair) else read_key(key)
        if isinstance(servers, (str, bytes)):
            raise ConfigurationError("servers is a list of public keys or .pub files")
        self.servers = tuple(dict.fromkeys(_public(server) for server in servers))
        if not self.servers:
            raise ConfigurationError(
                "no server's key: give servers the public keys of the nodes, such as ['keys/primary.pub', "
                "'keys/backup.pub']"
            )

    def __repr__(self) -> str:
        """Without the secret half."""
        return f"Security({self.key!r}, {len(self.servers)} servers)"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "Security | None":
        """What BSTAR_KEY (a path) and BSTAR_SERVER_KEYS (paths or keys, by commas) say; None without both."""
        environ = os.environ if environ is None else environ
        key, servers = environ.get(KEY_VARIABLE, ""), environ.get(SERVERS_VARIABLE, "")
        if not key and not servers:
            return None
        if not key or not servers:
            given, missing = (KEY_VARIABLE, SERVERS_VARIABLE) if key else (SERVERS_VARIABLE, KEY_VARIABLE)
            raise ConfigurationError(f"{given} is set and {missing} is not: a connection needs both")
        return cls(key, servers=[part.strip() for part in servers.split(",") if part.strip()])


class ServerSecurity:
    """CURVE for a server of one's own (``FreelanceServer``), without a file of principals.

    ``key`` is a ``KeyPair`` or the path of a ``.key`` file. ``clients`` are the public keys of those who may
    connect, as paths of ``.pub`` files or in Z85. Raises ConfigurationError as ``Security`` does.
    """

    def __init__(
        self, key: KeyPair | str | os.PathLike[str], *, clients: Sequence[str | bytes | os.PathLike[str]]
    ) -> None:
        self.key = key if isinstance(key, KeyPair) else read_key(key)
        if isinstance(clients, (str, bytes)):
            raise ConfigurationError("clients is a list of public keys or .pub files")
        keys = dict.fromkeys(_public(client).decode() for client in clients)
        if not keys:
            raise ConfigurationError("no client's key: give clients the public keys of those who may connect")
        self.principals = Principals(Principal(key, (key,), calls=Patterns(["*"])) for key in keys)

    def __repr__(self) -> str:
        """Without the secret half."""
        return f"ServerSecurity({self.key!r}, {len(self.principals.all)} clients)"


def _public(server: str | bytes | os.PathLike[str]) -> bytes:
    text = server.decode("ascii", "replace") if isinstance(server, bytes) else os.fspath(server)
    if is_public_key(text):
        return text.encode()
    if text.endswith(".key"):
        raise ConfigurationError(f"{text} is a node's secret key, which stays with it: name its .pub file")
    return read_public_key(text)[1]
