"""Keys for a pair under test: of its nodes, and of one arbiter, worker, client and operator."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from bstar.security import KeyPair, Security, new_key
from bstar.security.keys import write_key
from bstar.security.principals import digest_of
from bstar.settings.principals import LIST_HEAD, entry_line

ROLES: Mapping[str, Sequence[str]] = {
    "arbiter": ["arbiter"],
    "worker": ["offers:*"],
    "client": ["calls:*"],
    "operator": ["operator"],
}
"""Who is listed beside the nodes. The worker may offer and the client may call every service."""


class Keys:
    """Files in ``folder``: ``NAME.key`` and ``NAME.pub`` of the nodes and of ``ROLES``, and the list."""

    def __init__(self, folder: Path, nodes: Sequence[str]) -> None:
        self.folder = folder
        self.principals = folder / "principals.yaml"
        self._nodes = tuple(nodes)
        self._lines = [LIST_HEAD]
        for node in nodes:
            self.add(node, "peer")
        for name, roles in ROLES.items():
            self.add(name, *roles)

    def add(self, name: str, *roles: str, bounds: str = "") -> KeyPair:
        """A new key for another principal; the nodes know it a few seconds later.

        ``bounds`` as in the list: ``"connections: 2, outstanding: 10"``.
        """
        key = new_key(name)
        write_key(key, self.folder)
        line = entry_line(name, key.public.decode(), roles)
        self._lines.append(line.replace("}\n", f", {bounds}}}\n") if bounds else line)
        self.write()
        return key

    def add_token(self, name: str, *roles: str) -> str:
        """A bearer token for another principal; nodes and fronts know it a few seconds later."""
        token = secrets.token_urlsafe()
        self._lines.append(entry_line(name, digest_of(token), roles, "tokens"))
        self.write()
        return token

    def remove(self, name: str) -> None:
        """Take a principal off the list."""
        self._lines = [line for line in self._lines if not line.startswith(f"  {name}:")]
        self.write()

    def write(self) -> None:
        """Replace the list by the present one, at once."""
        new = self.principals.with_suffix(".new")
        new.write_text("".join(self._lines), encoding="utf-8")
        new.replace(self.principals)

    def path(self, name: str) -> Path:
        """The secret key's file."""
        return self.folder / f"{name}.key"

    def security(self, name: str) -> Security:
        """What a client or worker connects with that has this key and trusts the nodes."""
        return Security(self.path(name), servers=[self.folder / f"{node}.pub" for node in self._nodes])

    def variables(self, name: str) -> dict[str, str]:
        """The same for a command, as variables of its environment."""
        servers = ",".join(str(self.folder / f"{node}.pub") for node in self._nodes)
        return {"BSTAR_KEY": str(self.path(name)), "BSTAR_SERVER_KEYS": servers}
