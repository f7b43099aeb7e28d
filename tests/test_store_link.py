"""The link between the stores of a pair, on real sockets: with and without keys, and under attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import zmq

from bstar import Reactor
from bstar.errors import ConfigurationError
from bstar.net.connections import hang_up
from bstar.net.curve import Gate, NodeSecurity
from bstar.security import KeyPair, new_key
from bstar.security.keys import write_key
from bstar.settings.principals import LIST_HEAD, entry_line
from bstar_broker.store.core.peer import HEADER
from bstar_broker.store.link import StoreLink, open_link
from support.waiting import LIMIT_S

pytestmark = pytest.mark.loopback

TIMING = (100, 1_000)


class Side:
    """One node's end of the link, with a loop of its own that the test turns."""

    def __init__(self, endpoint: str, *, is_bound: bool, security: NodeSecurity | None = None) -> None:
        self.reactor = Reactor()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.gate = None if security is None else Gate(self.context, self.reactor, security)
        self.heard: list[bytes] = []
        self.losses = 0
        self.link: StoreLink = open_link(
            self.context,
            self.reactor,
            endpoint,
            is_bound=is_bound,
            timing=TIMING,
            security=security,
            handlers=(self._hear, self._lose),
        )

    def _hear(self, frames: list[bytes], now: float) -> None:
        assert bytes(frames[0]) == HEADER
        self.heard.append(bytes(frames[1]))

    def _lose(self, now: float) -> None:
        self.losses += 1

    def say(self, text: bytes) -> None:
        self.link.send([HEADER, text])

    def close(self) -> None:
        self.link.close()
        if self.gate is not None:
            self.gate.close()
        self.reactor.close()
        self.context.term()


def turn_until(sides: list[Side], question: Callable[[], object]) -> None:
    until = sides[0].reactor.now() + LIMIT_S
    while not question():
        assert sides[0].reactor.now() < until, f"not within {LIMIT_S:g} s"
        for side in sides:
            side.reactor.call_at(side.reactor.now() + 0.01, lambda now: None)
            side.reactor.turn()


def say_until_heard(speaker: Side, hearer: Side, text: bytes) -> None:
    """A message without a connection is dropped, so say it again."""

    def is_heard() -> bool:
        if text not in hearer.heard:
            speaker.say(text)
        return text in hearer.heard

    turn_until([speaker, hearer], is_heard)


class Keys:
    """Keys and a list, as ``bstar keys`` makes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.list = folder / "principals.yaml"
        self.made: dict[str, KeyPair] = {}
        self.roles: dict[str, list[str]] = {}
        for name, roles in (("primary", ["peer"]), ("backup", ["peer"]), ("shop", ["calls:price"])):
            self.made[name] = new_key(name)
            write_key(self.made[name], folder)
            self.roles[name] = roles
        self.write("primary", "backup", "shop")

    def write(self, *names: str) -> None:
        lines = [entry_line(name, self.made[name].public.decode(), self.roles[name]) for name in names]
        self.list.write_text(LIST_HEAD + "".join(lines))

    def security(self, name: str) -> NodeSecurity:
        return NodeSecurity(str(self.folder / f"{name}.key"), str(self.list))


@contextmanager
def two_sides(keys: Keys | None = None) -> Iterator[tuple[Side, Side]]:
    with ExitStack() as stack:
        security = None if keys is None else keys.security("primary")
        primary = Side("tcp://127.0.0.1:*", is_bound=True, security=security)
        stack.callback(primary.close)
        backup = Side(
            endpoint_of(primary), is_bound=False, security=None if keys is None else keys.security("backup")
        )
        stack.callback(backup.close)
        yield primary, backup


def endpoint_of(side: Side) -> str:
    return f"tcp://127.0.0.1:{getattr(side.link, 'place')}"  # noqa: B009


@contextmanager
def stranger(endpoint: str, key: KeyPair | None = None, server: bytes = b"") -> Iterator[zmq.Socket[bytes]]:
    """Anybody's DEALER."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        if key is not None:
            socket.curve_publickey, socket.curve_secretkey = key.public, key.secret
            socket.curve_serverkey = server
        socket.connect(endpoint)
        yield socket


def test_both_sides_hear_each_other_in_order() -> None:
    with two_sides() as (primary, backup):
        say_until_heard(backup, primary, b"hello")
        for number in range(100):
            primary.say(b"%d" % number)
        turn_until([primary, backup], lambda: len(backup.heard) == 100)
        assert backup.heard == [b"%d" % number for number in range(100)]


def test_a_message_without_a_connection_is_dropped_and_counted() -> None:
    side = Side("tcp://127.0.0.1:*", is_bound=True)
    side.say(b"x")
    assert side.link.dropped["not-sent"] == 1
    side.close()


def test_each_side_hears_once_that_the_connection_broke() -> None:
    with two_sides() as (primary, backup):
        say_until_heard(backup, primary, b"hello")
        say_until_heard(primary, backup, b"hello")
        for descriptor in list(getattr(primary.link, "_open")):  # noqa: B009
            assert hang_up(descriptor, getattr(primary.link, "place"))  # noqa: B009
        turn_until([primary, backup], lambda: primary.losses and backup.losses)
        say_until_heard(backup, primary, b"again")
        say_until_heard(primary, backup, b"again")
        assert (primary.losses, backup.losses) == (1, 1)


def test_a_new_process_of_the_backup_is_the_peer() -> None:
    with two_sides() as (primary, backup):
        say_until_heard(backup, primary, b"one")
        successor = Side(endpoint_of(primary), is_bound=False)
        say_until_heard(successor, primary, b"two")
        say_until_heard(primary, successor, b"three")
        assert primary.losses == 1
        # What comes by the old connection is of the past.
        backup.say(b"late")
        turn_until([primary, backup], lambda: primary.link.dropped["no-store"])
        assert b"late" not in primary.heard
        successor.close()


@pytest.fixture
def lone_primary() -> Iterator[Side]:
    side = Side("tcp://127.0.0.1:*", is_bound=True)
    yield side
    side.close()


@pytest.mark.parametrize("is_monitor_late", [False, True])
def test_a_peer_that_came_back_while_the_loop_was_away_is_heard(
    lone_primary: Side, is_monitor_late: bool
) -> None:
    """Its descriptor is that of the connection that ended. Its first message may be read before the
    monitor's events of either.
    """
    primary = lone_primary
    read, socket = getattr(primary.link, "_read"), getattr(primary.link, "_socket")  # noqa: B009
    is_open = getattr(primary.link, "_open")  # noqa: B009
    with stranger(endpoint_of(primary)) as first:
        first.send_multipart([HEADER, b"one"])
        turn_until([primary], lambda: b"one" in primary.heard)
        before = list(is_open)
    with stranger(endpoint_of(primary)) as second:
        second.send_multipart([HEADER, b"two"])
        assert socket.poll(int(LIMIT_S * 1_000))
        if is_monitor_late:
            read(primary.reactor.now())
        turn_until([primary], lambda: b"two" in primary.heard)
        assert list(is_open) == before, "the descriptor was to be the same"
        second.send_multipart([HEADER, b"three"])
        turn_until([primary], lambda: b"three" in primary.heard or primary.link.dropped.total())
        assert primary.heard == [b"one", b"two", b"three"]
        primary.say(b"four")
        assert second.poll(int(LIMIT_S * 1_000))
        assert primary.losses == 1
    turn_until([primary], lambda: primary.losses == 2)


def test_with_keys_the_nodes_of_the_pair_hear_each_other(tmp_path: Path) -> None:
    with two_sides(Keys(tmp_path)) as (primary, backup):
        say_until_heard(backup, primary, b"hello")
        say_until_heard(primary, backup, b"hello")


def test_with_keys_nobody_speaks_who_is_no_peer(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    unlisted = new_key("unlisted")
    with two_sides(keys) as (primary, backup):
        server = keys.made["primary"].public
        with (
            stranger(endpoint_of(primary)) as plain,
            stranger(endpoint_of(primary), keys.made["shop"], server) as shop,
            stranger(endpoint_of(primary), unlisted, server) as other,
        ):
            for socket in (plain, shop, other):
                socket.send_multipart([HEADER, b"attack"], zmq.NOBLOCK)
            assert primary.gate is not None
            refusals = primary.gate.doorkeeper.refusals
            turn_until([primary, backup], lambda: refusals["wrong-role"] and refusals["unknown-key"])
            say_until_heard(backup, primary, b"hello")
        assert b"attack" not in primary.heard


def test_a_peer_whose_key_is_taken_away_is_not_heard_any_more(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    with two_sides(keys) as (primary, backup):
        say_until_heard(backup, primary, b"hello")
        keys.write("primary", "shop")
        assert primary.gate is not None
        assert primary.gate.security.refresh()
        primary.gate.doorkeeper.principals = primary.gate.security.principals
        backup.say(b"late")
        turn_until([primary, backup], lambda: primary.losses)
        refusals = primary.gate.doorkeeper.refusals

        def is_refused() -> bool:
            backup.say(b"late")
            return refusals["unknown-key"] > 0

        turn_until([primary, backup], is_refused)
        assert b"late" not in primary.heard


def test_a_peer_whose_role_is_taken_away_hears_nothing_more(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    with two_sides(keys) as (primary, backup):
        say_until_heard(backup, primary, b"hello")
        keys.roles["backup"] = ["calls:price"]
        keys.roles["shop"] = ["peer"]
        keys.write("primary", "backup", "shop")
        assert primary.gate is not None
        assert primary.gate.security.refresh()
        turn_until([primary, backup], lambda: primary.losses)


def test_a_key_that_is_gone_is_nobodys_on_an_open_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bstar_broker.store.link.hang_up", lambda descriptor, place: True)
    keys = Keys(tmp_path)
    with two_sides(keys) as (primary, backup):
        say_until_heard(backup, primary, b"hello")
        keys.write("primary", "shop")
        assert primary.gate is not None
        assert primary.gate.security.refresh()
        backup.say(b"late")
        turn_until([primary, backup], lambda: primary.link.dropped["no-peer"])
        assert b"late" not in primary.heard


def test_what_is_no_stores_message_displaces_nobody() -> None:
    with two_sides() as (primary, backup):
        say_until_heard(backup, primary, b"hello")
        with stranger(endpoint_of(primary)) as socket:
            socket.send_multipart([b"GARBAGE", b"attack"])
            turn_until([primary, backup], lambda: primary.link.dropped["no-store"])
        say_until_heard(primary, backup, b"still here")
        assert primary.losses == 0


def test_more_connections_than_a_pair_needs_are_closed() -> None:
    with two_sides() as (primary, backup), ExitStack() as stack:
        say_until_heard(backup, primary, b"hello")
        for _ in range(20):
            stack.enter_context(stranger(endpoint_of(primary)))
        say_until_heard(backup, primary, b"again")
        say_until_heard(primary, backup, b"again")


def test_an_endpoint_in_use_is_a_clear_error() -> None:
    side = Side("tcp://127.0.0.1:*", is_bound=True)
    with zmq.Context() as context:
        reactor = Reactor()
        with pytest.raises(ConfigurationError, match=r"store\.link.*cannot be bound"):
            open_link(
                context,
                reactor,
                endpoint_of(side),
                is_bound=True,
                timing=TIMING,
                security=None,
                handlers=(lambda frames, now: None, lambda now: None),
            )
        reactor.close()
    side.close()
