"""Keys in a simulated run: the list of principals, how nodes come to know it, and what it allows.

A connection bears the user id that ZAP would give it; CURVE itself is not simulated. What the list allows is
said here in plain sets: the product's patterns and its authority must not be judged by themselves.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from bstar.security.principals import Patterns, Principal, Principals
from bstar.wire import mmi
from sim.setup import Setup, attackers_of

# How long a node may take until it has read a new list (bstar.net.curve).
READ_S = 2.0


class Rights(msgspec.Struct, frozen=True):
    """What an entry of the list allows."""

    calls: frozenset[bytes] = frozenset()
    offers: frozenset[bytes] = frozenset()


def user_of(name: str) -> str:
    """The user id of the process of this name."""
    return f"{name} key-of-{name}"


class View:
    """The list as one node has read it last. ``principals`` is the product's form of it."""

    def __init__(self, rights: Mapping[str, Rights]) -> None:
        self._rights = {user_of(name): each for name, each in rights.items()}
        self.principals = Principals(_principal(name, each) for name, each in rights.items())

    def is_listed(self, user_id: str) -> bool:
        """True if the owner of this key may connect."""
        return user_id in self._rights

    def may_call(self, user_id: str, service: bytes) -> bool:
        """True if the owner of this key may ask for the service."""
        rights = self._rights.get(user_id, _NONE)
        return bool(rights.calls) if service.startswith(mmi.PREFIX) else service in rights.calls

    def may_offer(self, user_id: str, service: bytes) -> bool:
        """True if the owner of this key may be a worker of the service."""
        return service in self._rights.get(user_id, _NONE).offers


_NONE = Rights()


def _principal(name: str, rights: Rights) -> Principal:
    calls, offers = (
        Patterns(sorted(each.decode() for each in them)) for them in (rights.calls, rights.offers)
    )
    return Principal(name, (user_of(name).partition(" ")[2],), offers=offers, calls=calls)


class KeyList:
    """The file that all nodes read. A withdrawn entry is left out until it is restored as often."""

    def __init__(self, rights: Mapping[str, Rights]) -> None:
        self._rights = dict(rights)
        self._withdrawn: Counter[str] = Counter()

    @classmethod
    def of(cls, setup: Setup, services: Iterable[str], services_of_workers: Iterable[str]) -> KeyList:
        """Each client may call all services, each worker may offer its own, each attacker another one."""
        calls = Rights(calls=frozenset(service.encode() for service in services))
        rights = {name: calls for name, *_ in setup.clients}
        for (name, *_), service in zip(setup.workers, services_of_workers, strict=True):
            rights[name] = Rights(offers=frozenset((service.encode(),)))
        for name in attackers_of(setup):
            other = frozenset((b"other",))
            rights[name] = Rights(offers=other) if name.endswith("worker") else Rights(calls=other)
        return cls(rights)

    def view(self) -> View:
        """What a node reads now."""
        return View({name: each for name, each in self._rights.items() if not self._withdrawn[name]})

    def withdraw(self, name: str) -> None:
        """Take an entry off the list."""
        self._withdrawn[name] += 1

    def restore(self, name: str) -> None:
        """List it again."""
        self._withdrawn[name] = max(0, self._withdrawn[name] - 1)

    def restore_all(self) -> None:
        """List everybody."""
        self._withdrawn.clear()


def read_after_s(rng: random.Random) -> float:
    """How long one node takes until it reads a new list."""
    return rng.uniform(0.0, READ_S)
