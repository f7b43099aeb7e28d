"""Who may connect to a node, and as what: principals, their keys and their roles.

A principal is a name with one or more public keys. Two keys at once let it change its key without an outage.
Its roles:

    peer        a node of the pair
    arbiter     the arbiter that the nodes ask
    operator    looks at everything: mmi.state and the other management services
    orders      gives a node orders from elsewhere, if its configuration says security.orders: true
    offers      a worker, of the services that match these patterns
    calls       a client, of the services that match these patterns

A pattern is a service's name, or the beginning of names with * at its end; "*" alone matches every service. A
connection bears the ``user_id`` that ZAP gave it: the principal's name and the key that it proved. So a key
that is removed from the list loses its rights at once, on connections that are open, too.

An entry may have bounds, for all its connections to one node together (``Quota``), and tokens, with which its
owner calls over HTTP (docs/http.md). The list holds their SHA-256.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from bstar.errors import ConfigurationError

_KEY = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
# Names of services that a principal was asked about; the answers are kept.
_ANSWERS_MAX = 10_000


def is_public_key(text: str) -> bool:
    """True for 40 characters of Z85."""
    return _KEY.fullmatch(text) is not None


def digest_of(token: str) -> str:
    """What the list holds of a token: its SHA-256 in hexadecimal digits."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


class Patterns:
    """A set of names and of beginnings of names (``eu.*``)."""

    __slots__ = ("_answers", "_names", "_prefixes", "texts")

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts = tuple(texts)
        self._names = frozenset(text.encode() for text in self.texts if not text.endswith("*"))
        self._prefixes = tuple(text[:-1].encode() for text in self.texts if text.endswith("*"))
        self._answers: dict[bytes, bool] = {}

    def __bool__(self) -> bool:
        return bool(self.texts)

    def match(self, name: bytes) -> bool:
        """True if one of them matches the service."""
        answer = self._answers.get(name)
        if answer is None:
            answer = name in self._names or name.startswith(self._prefixes)
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            self._answers[name] = answer
        return answer


NOTHING = Patterns()


class Quota(msgspec.Struct, frozen=True):
    """The bounds of one entry, for all its connections to one node together. None: no bound.

    ``messages_per_s`` counts messages of every kind, ``requests_per_s`` and ``bytes_per_s`` requests and the
    bytes of their bodies, ``outstanding`` requests that wait or execute.
    """

    connections: int | None = None
    messages_per_s: float | None = None
    requests_per_s: float | None = None
    bytes_per_s: float | None = None
    outstanding: int | None = None


class Principal(msgspec.Struct, frozen=True):
    """One entry of the list. ``keys`` are public halves in Z85, ``tokens`` the digests of bearer tokens.
    Without a ``quota`` it has no bounds.
    """

    name: str
    keys: tuple[str, ...]
    is_peer: bool = False
    is_arbiter: bool = False
    is_operator: bool = False
    may_order: bool = False
    offers: Patterns = NOTHING
    calls: Patterns = NOTHING
    quota: Quota | None = None
    tokens: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        """The words of the list: peer, arbiter, operator, orders, offers, calls."""
        held = {
            "peer": self.is_peer,
            "arbiter": self.is_arbiter,
            "operator": self.is_operator,
            "orders": self.may_order,
            "offers": self.offers,
            "calls": self.calls,
        }
        return tuple(role for role, has_role in held.items() if has_role)


class Principals:
    """The list of a node. Raises ConfigurationError if two principals share a name, a key or a token."""

    def __init__(self, principals: Iterable[Principal] = ()) -> None:
        self.all = tuple(principals)
        self._by_key: dict[str, tuple[str, Principal]] = {}
        self._by_user: dict[str, Principal] = {}
        self._by_digest: dict[str, Principal] = {}
        names: set[str] = set()
        for principal in self.all:
            if principal.name in names:
                raise ConfigurationError(f"two principals are called {principal.name}")
            names.add(principal.name)
            for key in principal.keys:
                if key in self._by_key:
                    other = self._by_key[key][1].name
                    if other == principal.name:
                        raise ConfigurationError(f"{other} lists one key twice")
                    raise ConfigurationError(
                        f"{principal.name} and {other} have the same key: each needs its own"
                    )
                user_id = f"{principal.name} {key}"
                self._by_key[key] = (user_id, principal)
                self._by_user[user_id] = principal
            for digest in principal.tokens:
                if digest in self._by_digest:
                    other = self._by_digest[digest].name
                    raise ConfigurationError(f"{principal.name} and {other} have one token twice")
                self._by_digest[digest] = principal

    def keys_of(self, may: Callable[[Principal], bool]) -> frozenset[str]:
        """The public keys of those for whom ``may`` holds."""
        return frozenset(key for key, (_, principal) in self._by_key.items() if may(principal))

    def of_key(self, key: str) -> tuple[str, Principal] | None:
        """The user id and the principal of a public key."""
        return self._by_key.get(key)

    def of_token(self, token: str) -> Principal | None:
        """The principal of a bearer token."""
        return self._by_digest.get(digest_of(token))

    def of_user(self, user_id: str) -> Principal | None:
        """Whose connection it is; None if its key is in the list no more."""
        return self._by_user.get(user_id)


def principal_of(name: str, entry: object) -> Principal:
    """One entry of a principals file. Raises ConfigurationError saying what is wrong with it."""
    if not isinstance(entry, Mapping):
        raise ConfigurationError("must hold keys and roles")
    for word in entry:
        if word not in _Entry.__struct_fields__:
            raise ConfigurationError(
                f"unknown word {word!r}; there are {', '.join(_Entry.__struct_fields__)}"
            )
    for word in ("keys", "tokens", "offers", "calls"):
        if not isinstance(entry.get(word, []), list):
            raise ConfigurationError(f"{word} is a list, such as {word}: [{entry[word]}]")
        for text in entry.get(word, []):
            if not isinstance(text, str):
                raise ConfigurationError(f"{word}: YAML reads one of these as {text!r}: put it in quotes")
    parts = _parts(entry)
    principal = Principal(
        name,
        tuple(parts.keys),
        parts.peer,
        parts.arbiter,
        parts.operator,
        parts.orders,
        Patterns(parts.offers),
        Patterns(parts.calls),
        parts.quota(),
        tuple(parts.tokens),
    )
    if principal.quota is not None and set(principal.roles) <= {"peer", "arbiter"}:
        raise ConfigurationError(
            "has bounds, which are for calls, offers, operator and orders: a node uses none"
        )
    if principal.tokens and not principal.calls:
        raise ConfigurationError("has tokens, which are for calls over HTTP: say calls: [...]")
    if not principal.roles:
        raise ConfigurationError(
            "has no role: say peer: true, arbiter: true, operator: true, orders: true, offers: [...] or "
            "calls: [...]"
        )
    return principal


def _parts(entry: Mapping[object, object]) -> "_Entry":
    try:
        parts = msgspec.convert(entry, _Entry)
    except msgspec.ValidationError:
        raise ConfigurationError(_wrong(entry)) from None
    for key in parts.keys:
        if not is_public_key(key):
            raise ConfigurationError(
                "keys: holds what is no public key: 40 characters of Z85, as in the .pub file"
            )
    if not parts.keys and not parts.tokens:
        raise ConfigurationError(_KEYLESS)
    for digest in parts.tokens:
        if _DIGEST.fullmatch(digest) is None:
            raise ConfigurationError("tokens: holds what is no digest of a token: bstar keys token makes one")
    for word, texts in (("offers", parts.offers), ("calls", parts.calls)):
        for text in texts:
            if not text or "*" in text[:-1]:
                raise ConfigurationError(
                    f"{word}: {text!r} is no pattern: a name, or the beginning of names and *"
                )
    return parts


def _wrong(entry: Mapping[object, object]) -> str:
    """What is wrong with an invalid entry, in the words of the list."""
    if not entry.get("keys") and not entry.get("tokens"):
        return _KEYLESS
    types = {field.name: field.type for field in msgspec.structs.fields(_Entry)}
    for word, value in entry.items():
        meant = types[str(word)]
        try:
            msgspec.convert(value, meant)
        except msgspec.ValidationError:
            return f"{word} is {value!r:.80}, and must be {_MEANINGS.get(meant, 'true or false')}"
    raise AssertionError("an entry of valid words is valid")


_KEYLESS = "has no keys: add keys: ['…'] with its public keys, or tokens: ['…'] if it calls over HTTP alone"
_COUNT_MAX = 1_000_000_000
_RATE_MAX = 1e12
Count = Annotated[int, Meta(ge=1, le=_COUNT_MAX)]
Rate = Annotated[float, Meta(gt=0, le=_RATE_MAX)]
_MEANINGS = {
    Count | None: f"a whole number from 1 to {_COUNT_MAX}",
    Rate | None: f"a number above 0, {_RATE_MAX:.0f} at most",
}


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[str] = []
    tokens: list[str] = []
    peer: bool = False
    arbiter: bool = False
    operator: bool = False
    orders: bool = False
    offers: list[str] = []
    calls: list[str] = []
    connections: Count | None = None
    messages_per_s: Rate | None = None
    requests_per_s: Rate | None = None
    bytes_per_s: Rate | None = None
    outstanding: Count | None = None

    def quota(self) -> Quota | None:
        bounds = {word: getattr(self, word) for word in Quota.__struct_fields__}
        return Quota(**bounds) if any(bounds.values()) else None
