"""A fleet: several pairs of brokers, and the pair of each service.

A pair is one thread on one core, so more work needs several pairs. Each service belongs to exactly one of
them. Client and worker compute which one by *rendezvous hashing* (highest random weight). A pair's weight for
a service is a hash of the pair's identity and the service's name. The heaviest pair has the service. A new
pair takes its share from all others, and nothing else moves. A removed pair gives its services to all others.

    weight = BLAKE2b with 8 bytes of digest, as a big-endian number, over
             identity of the pair, a byte of zero, name of the service

(``printf 'PAIR\\0SERVICE' | b2sum -l 64`` prints it.) The identity is the pair's name; without a name its
endpoints, sorted and joined by commas. So the order of pairs and nodes does not matter, but a node's address
does. Pins overrule the hash.

It does not weigh pairs or look at load. It does not replace a pair that is down, because the service's
workers are not at another pair. docs/adr/0009-rendezvous-hashing.md.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import msgspec

from bstar.errors import ConfigurationError, LocalProtocolError

# As the nodes' setting ``pair`` has it. It keeps commas and slashes out, so no name looks like endpoints.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# Services whose pair is remembered; finding it costs about a microsecond per pair.
_REMEMBERED_MAX = 65_536
_DIGEST_BYTES = 8
_ANY = b"*"


class Pair(msgspec.Struct, frozen=True):
    """Endpoints of the nodes that stand in for each other, the primary first, and the pair's name if any.

    Two endpoints as a rule, one for a broker alone.
    """

    endpoints: tuple[str, ...]
    name: str | None = None

    @property
    def identity(self) -> str:
        """What the hash knows the pair by: its name, or its endpoints, sorted and joined by commas."""
        return self.name if self.name is not None else ",".join(sorted(self.endpoints))


class Fleet:
    """Pairs, and which of them each service belongs to.

    ``pins`` maps services to pairs and overrules the hash. A pair is named by its name or, without a name, by
    one of its endpoints. A service that ends with ``*`` stands for all names with that prefix. A whole name
    wins over a prefix, a longer prefix over a shorter one.

    ConfigurationError for no pair, a pair without endpoints, a repeated endpoint or name, and a pin to an
    unknown pair.
    """

    def __init__(self, pairs: Iterable[Pair], *, pins: Mapping[str, str] | None = None) -> None:
        self.pairs = tuple(pairs)
        if pins is not None and not isinstance(pins, Mapping):
            raise TypeError(f"pins are a mapping from services to pairs, not {type(pins).__name__}")
        self.pins = dict(pins or {})
        _check_texts([*self.pins, *self.pins.values()], "the services and pairs of pins")
        self._check()
        self._identities = [pair.identity for pair in self.pairs]
        self._exact: dict[bytes, int] = {}
        self._beginnings: list[tuple[bytes, int]] = []
        for service, target in self.pins.items():
            name, place = service.encode(), self._target(service, target)
            if name.endswith(_ANY):
                self._beginnings.append((name.removesuffix(_ANY), place))
            else:
                self._exact[name] = place
        self._beginnings.sort(key=lambda pin: len(pin[0]), reverse=True)
        self._places: dict[bytes, int] = {}

    @classmethod
    def of(cls, endpoints: "Endpoints", pins: Mapping[str, str] | None = None) -> "Fleet":
        """The fleet that ``endpoints`` stands for; see ``Endpoints``."""
        if isinstance(endpoints, Fleet):
            if pins:
                raise ConfigurationError("the fleet has pins of its own: give them to Fleet(…, pins=…)")
            return endpoints
        if isinstance(endpoints, Mapping):
            return cls([_pair(listed, name) for name, listed in endpoints.items()], pins=pins)
        if isinstance(endpoints, str):
            return cls([_pair(part) for part in endpoints.split(";")], pins=pins)
        listed = list(_iterable(endpoints))
        flat = [each for each in listed if isinstance(each, str)]
        if listed and len(flat) == len(listed):
            return cls([_pair(flat)], pins=pins)
        if flat:
            raise ConfigurationError(
                f"endpoints are one list of endpoints or a list of such lists, not a mixture: {flat[0]!r} is "
                "in no pair"
            )
        return cls([_pair(each) for each in listed], pins=pins)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All endpoints, pair by pair."""
        return tuple(endpoint for pair in self.pairs for endpoint in pair.endpoints)

    def pair_of(self, service: str | bytes) -> Pair:
        """The pair that the service belongs to. LocalProtocolError for a name that UTF-8 cannot encode."""
        try:
            name = service.encode() if isinstance(service, str) else service
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"the service's name cannot be written as UTF-8: {error}") from error
        return self.pairs[self.place(name)]

    def place(self, service: bytes) -> int:
        """The same as an index into ``pairs``."""
        if len(self.pairs) == 1:
            return 0
        places = self._places
        place = places.get(service)
        if place is None:
            if len(places) >= _REMEMBERED_MAX:
                places.clear()
            places[service] = place = self._find(service)
        return place

    def _find(self, service: bytes) -> int:
        if service in self._exact:
            return self._exact[service]
        for beginning, place in self._beginnings:
            if service.startswith(beginning):
                return place
        # Equal weights are as good as impossible; the identity decides, and not the order of the list.
        ranks = [(weight(identity, service), identity) for identity in self._identities]
        return ranks.index(max(ranks))

    def _check(self) -> None:
        if not self.pairs:
            raise ConfigurationError("there is no pair: name its endpoints")
        seen: set[str] = set()
        for number, pair in enumerate(self.pairs, 1):
            _check_texts(pair.endpoints, "endpoints")
            if pair.name is not None:
                _check_texts([pair.name], "names of pairs")
            title = repr(pair.name) if pair.name is not None else f"number {number}"
            if pair.name is not None and _NAME.fullmatch(pair.name) is None:
                raise ConfigurationError(
                    f"a pair's name is 1 to 64 letters, digits, '.', '_' and '-', not {pair.name!r}"
                )
            if not pair.endpoints or not all(pair.endpoints):
                raise ConfigurationError(
                    f"endpoints must be one or more, each once: the pair {title} has {list(pair.endpoints)}"
                )
            for each in (*pair.endpoints, *([pair.name] if pair.name is not None else [])):
                if each in seen:
                    raise ConfigurationError(
                        f"endpoints and names of pairs must each stand once: {each!r} of the pair {title} "
                        "stands twice"
                    )
                seen.add(each)

    def _target(self, service: str, target: str) -> int:
        for place, pair in enumerate(self.pairs):
            if target == pair.name or target in pair.endpoints:
                return place
        known = ", ".join(pair.name or pair.endpoints[0] for pair in self.pairs)
        raise ConfigurationError(
            f"the service {service!r} is pinned to {target!r}, which is no pair; there is: {known}"
        )

    def __repr__(self) -> str:
        return f"Fleet({list(self.pairs)!r}, pins={self.pins!r})"


def weight(identity: str, service: bytes) -> int:
    """How heavy the pair of this identity is for the service: 64 bits; the heaviest pair has it."""
    data = identity.encode() + b"\0" + service
    return int.from_bytes(blake2b(data, digest_size=_DIGEST_BYTES).digest(), "big")


def _pair(endpoints: "Sequence[str]", name: str | None = None) -> Pair:
    if isinstance(endpoints, str):
        listed = [part.strip() for part in endpoints.split(",")]
        return Pair(tuple(part for part in listed if part), name)
    return Pair(tuple(_iterable(endpoints)), name)


def _iterable(endpoints: object) -> Iterable[Any]:  # Any: texts, or lists of them
    if isinstance(endpoints, Iterable) and not isinstance(endpoints, bytes | bytearray | memoryview):
        return endpoints
    raise TypeError(f"endpoints are a text or a list of texts, not {type(endpoints).__name__}")


def _check_texts(texts: Iterable[object], what: str) -> None:
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{what} are texts, not {type(text).__name__}")


Endpoints: TypeAlias = str | Sequence[str] | Sequence[Sequence[str]] | Mapping[str, Sequence[str]] | Fleet
"""The brokers. A text: ``A,B`` for a pair, ``A,B;C,D`` for two. A list: the endpoints of one pair, the
primary first. A list of such lists: several pairs. A mapping from names to such lists: pairs with names. Or a
Fleet.
"""
