"""The attacks of the threat model in docs/security.md, made for real on a pair with keys.

Each attack is a function of a ``Target``. It returns a sentence that says what happened, and fails if the
attacker got anywhere. Some of them stop nodes or withdraw keys; the last one ends the pair. ``chaos.keyed``
makes all of them on hosts of their own, tests/test_security_loopback.py on one machine.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import pytest
import zmq

from bstar.errors import CallError, NoActiveNodeError, OutcomeUnknownError, RejectedError
from bstar.security import Security, new_key
from bstar.wire import native
from bstar.wire.arbiter import Question, encode_question
from bstar_client import HAClient, node_states
from bstar_testing.nodes import COMMAND
from bstar_testing.processes import Process, environment, wait_until
from chaos.changer import Changer

T = TypeVar("T")

SERVICE = "price"
REPLY_S = 60.0
# Long enough that what should not come would have come; nothing is measured.
NOTHING_MS = 1_500
_REFUSED_S = 3.0
_ETH_P_ALL = 3


class RunAt(Protocol):
    """Calls a function on a host: ``attacker``, or one of the target's own whose address somebody took."""

    def __call__(self, host: str, call: Callable[[], T], /) -> T:
        """What the call returns."""


def on_this_machine(host: str, call: Callable[[], T], /) -> T:
    """Where all hosts are one."""
    return call()


@dataclass(frozen=True, kw_only=True)
class Target:
    """A pair with keys and an arbiter. ``worker``, ``client`` and ``operator`` are names of keys: the worker
    offers SERVICE and nothing else, the client calls it and no other service but of the prefix ``stock.``.
    """

    endpoints: tuple[str, str]
    state_endpoint: str
    arbiter_endpoint: str
    keys: Path
    nodes: Mapping[str, Process]
    arbiter: Process
    worker: str = "price-worker"
    client: str = "shop"
    operator: str = "ops"
    run_at: RunAt = on_this_machine

    def security(self, name: str) -> Security:
        """What the owner of this key connects with."""
        return Security(self.keys / f"{name}.key", servers=[self.keys / f"{node}.pub" for node in self.nodes])

    def log(self) -> str:
        """Of both nodes."""
        return "\n".join(node.log() for node in self.nodes.values())

    def works(self) -> None:
        """A client that may call is answered."""
        with HAClient(self.endpoints, security=self.security(self.client)) as client:
            assert client.request(SERVICE, b"hello", timeout=REPLY_S).frames == (b"hello",)

    def withdraw(self, name: str) -> None:
        """Delete the line of this entry, as the page says."""
        listed = self.keys / "principals.yaml"
        lines = listed.read_text().splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"  {name}:")]
        assert len(kept) == len(lines) - 1, f"{name} has one line"
        new = listed.with_suffix(".new")
        new.write_text("".join(kept))
        new.replace(listed)

    def pair_states(self) -> list[Mapping[str, Any] | None]:
        """What the operator sees of the Binary Star at each node; None for a node that does not answer."""
        reports = self.run_at(
            "attacker", lambda: node_states(self.endpoints, REPLY_S, self.security(self.operator))
        )
        return [each.state and cast("Mapping[str, Any]", each.state["pair"]) for each in reports]

    def does_primary_hear(self) -> bool:
        """True if the primary hears its peer."""
        state = self.pair_states()[0]
        assert state is not None, "the primary does not answer"
        return bool(state["is_peer_fresh"])


@dataclass(frozen=True)
class Attack:
    """``who`` and ``tries_to`` are the words of the page's table."""

    who: str
    tries_to: str
    make: Callable[[Target], str]


@contextlib.contextmanager
def dealer(endpoint: str, security: Security | None, *, server: int = 0) -> Iterator[zmq.Socket[bytes]]:
    """A bare DEALER, of any program, with or without a key."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as bare:
        bare.linger = 0
        bare.rcvtimeo = NOTHING_MS
        if security is not None:
            bare.curve_publickey, bare.curve_secretkey = security.key.public, security.key.secret
            bare.curve_serverkey = security.servers[server]
        bare.connect(endpoint)
        yield bare


def _hears_nothing(bare: zmq.Socket[bytes]) -> None:
    try:
        frames = bare.recv_multipart()
    except zmq.Again:
        return
    raise AssertionError(f"the attacker got {frames}")


def _is_refused(
    target: Target, security: Security | None, *, endpoints: tuple[str, ...] | None = None
) -> str:
    """A client that cannot even connect: the error that it gets."""
    with (
        HAClient(endpoints or target.endpoints, security=security) as client,
        pytest.raises(NoActiveNodeError, match="handshake failed"),
    ):
        client.request(SERVICE, b"x", timeout=_REFUSED_S)
    return "`NoActiveNodeError`: handshake failed"


def _is_rejected(target: Target, name: str, service: str) -> str:
    text = f'{name} may not call service "{service}"'
    with (
        HAClient(target.endpoints, security=target.security(name)) as client,
        pytest.raises(RejectedError, match=text) as caught,
    ):
        client.request(service, b"x", timeout=REPLY_S)
    assert not caught.value.may_have_executed
    return f"`RejectedError`: {text}"


def _registers_nowhere(target: Target, name: str, service: str) -> str:
    """A READY that is refused, and its epoch not believed."""
    with dealer(target.endpoints[0], target.security(name)) as bare:
        bare.send_multipart(native.encode_ready(service.encode(), credit=1, epoch=1_000_000))
        answer = native.decode(bare.recv_multipart())
        assert answer.command == native.DISCONNECT, answer
    assert all(state and state["epoch_seen"] < 1_000_000 for state in target.pair_states()), "it was believed"
    return "`DISCONNECT NOT_ALLOWED`; the epoch that it named was not believed"


# --- the attacks -----------------------------------------------------------------------------------------


def read_the_traffic(target: Target) -> str:
    """A packet socket on the node's own interface. It sees plain text, so it would see the request's."""
    secret, plain = b"the price is confidential " * 8, b"seen in plain text " * 8
    listen = lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))  # noqa: E731

    def hear() -> list[bytes]:
        """From now on: what is not read at once is lost after some hundred packets."""
        packets = [sniffer.recv(65_536)]
        until = time.monotonic() + 2 * REPLY_S
        while plain not in packets[-1]:
            assert time.monotonic() < until, "the line of plain text was not heard"
            packets.append(sniffer.recv(65_536))
        return packets

    with target.run_at("primary", listen) as sniffer, ThreadPoolExecutor(1) as ears:
        sniffer.settimeout(REPLY_S)
        heard = ears.submit(hear)

        def ask() -> None:
            with HAClient(target.endpoints, security=target.security(target.client)) as client:
                assert client.request(SERVICE, secret, timeout=REPLY_S).body == secret
            with socket.create_connection(_address(target.endpoints[0]), REPLY_S) as connection:
                connection.sendall(plain)

        target.run_at("attacker", ask)
        packets = heard.result()
    assert len(packets) > 10, "too few packets to say anything"
    assert not [packet for packet in packets if secret[:26] in packet]
    return "none of the packets has the body of the request; a line of plain text beside it is read"


def change_the_traffic(target: Target) -> str:
    """Somebody on the way changes one byte of a long request."""

    def attack() -> str:
        security, said = target.security(target.client), ""
        with (
            Changer(_address(target.endpoints[0])) as changer,
            HAClient([changer.endpoint], security=security) as client,
        ):

            def is_cut_off() -> bool:
                """A second connection has come to be changed, so the node has ended the first."""
                nonlocal said
                with pytest.raises(CallError) as caught:
                    client.request(SERVICE, bytes(5_000), timeout=_REFUSED_S)
                said = caught.type.__name__
                return changer.changed > 1

            wait_until(is_cut_off, "the node ends the connection")
        return said

    said = target.run_at("attacker", attack)
    return f"the node ends the connection at the changed frame; the call ends with `{said}`"


def connect_without_a_key(target: Target) -> str:
    """A bare socket, and a client."""

    def attack() -> str:
        with dealer(target.endpoints[0], None) as bare:
            bare.send_multipart(native.encode_ping())
            _hears_nothing(bare)
        return _is_refused(target, None)

    return target.run_at("attacker", attack)


def connect_with_an_unknown_key(target: Target) -> str:
    """The nodes say whose key it was."""
    stranger = Security(new_key("stranger"), servers=target.security(target.client).servers)
    said = target.run_at("attacker", lambda: _is_refused(target, stranger))
    wait_until(lambda: stranger.key.public.decode() in target.log(), "the log names the key")
    assert "unknown-key" in target.log()
    return f"{said}; the node's log has `unknown-key` and the key"


def pose_as_a_node(target: Target) -> str:
    """The backup is down, and somebody listens at its address."""
    backup = target.nodes["backup"]
    backup.stop()
    with contextlib.ExitStack() as resources:

        def listen() -> zmq.Socket[bytes]:
            thief = resources.enter_context(zmq.Context()).socket(zmq.ROUTER)
            resources.callback(thief.close, 0)
            thief.curve_server, thief.curve_secretkey = True, new_key("thief").secret
            thief.rcvtimeo = NOTHING_MS
            thief.bind(target.endpoints[1])
            return thief

        thief = target.run_at("backup", listen)
        security, only = target.security(target.client), target.endpoints[1:]
        said = target.run_at("attacker", lambda: _is_refused(target, security, endpoints=only))
        _hears_nothing(thief)
    backup.launch()
    wait_until(target.does_primary_hear, "the backup is back")
    return f"{said}; he received no request"


def call_a_foreign_service(target: Target) -> str:
    """One request to a service that no pattern of its entry matches."""
    return target.run_at("attacker", lambda: _is_rejected(target, target.client, "payroll"))


def register_as_a_worker(target: Target) -> str:
    """A client says READY, with a high epoch."""
    return target.run_at("attacker", lambda: _registers_nowhere(target, target.client, SERVICE))


def offer_a_foreign_service(target: Target) -> str:
    """A worker says READY for a service that it may not offer."""
    return target.run_at("attacker", lambda: _registers_nowhere(target, target.worker, "payroll"))


def hear_the_pair(target: Target) -> str:
    """Subscribe to a node's state, and ask for the arbiter's ballot, with a client's key and without one."""

    def attack() -> None:
        for security in (target.security(target.client), None):
            with zmq.Context() as context, context.socket(zmq.SUB) as spy:
                spy.linger, spy.rcvtimeo = 0, NOTHING_MS
                if security is not None:
                    spy.curve_publickey, spy.curve_secretkey = security.key.public, security.key.secret
                    spy.curve_serverkey = security.servers[0]
                spy.subscribe(b"")
                spy.connect(target.state_endpoint)
                _hears_nothing(spy)
        arbiters = Security(target.keys / f"{target.client}.key", servers=[target.keys / "arbiter.pub"])
        with dealer(target.arbiter_endpoint, arbiters) as bare:
            # A peer would get an answer.
            claim = Question("claim", "bstar", "primary", "attacker", 1, 60_000)
            bare.send_multipart(encode_question(claim))
            _hears_nothing(bare)

    target.run_at("attacker", attack)
    return "the handshakes fail: no state is heard, and the arbiter reads no question"


def have_the_arbiters_address(target: Target) -> str:
    """The arbiter is down, somebody listens at its address, and goes."""
    target.arbiter.stop()
    before = {name: len(node.log()) for name, node in target.nodes.items()}
    with contextlib.ExitStack() as resources:

        def listen() -> None:
            impostor = resources.enter_context(zmq.Context()).socket(zmq.ROUTER)
            resources.callback(impostor.close, 0)
            impostor.bind(target.arbiter_endpoint)

        target.run_at("arbiter", listen)
        wait_until(
            lambda: all(
                "handshake fails" in node.log()[before[name] :] for name, node in target.nodes.items()
            ),
            "both nodes met it",
        )
    target.arbiter.launch()

    wait_until(
        lambda: all(state and state["quorum"]["is_arbiter_heard"] for state in target.pair_states()),
        "the nodes hear the arbiter",
    )
    return "both logs say that the handshake fails; they hear the arbiter once it is back"


def go_on_with_a_withdrawn_key(target: Target) -> str:
    """Its connection is open."""
    command = [*COMMAND, "keys", "new", "leaver", "--calls", SERVICE, "--out", str(target.keys)]
    subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
    said = ""

    def attack() -> None:
        with HAClient(target.endpoints, security=target.security("leaver")) as client:
            assert client.request(SERVICE, b"x", timeout=REPLY_S).body == b"x"
            target.withdraw("leaver")

            def is_refused() -> bool:
                nonlocal said
                try:
                    client.request(SERVICE, b"x", timeout=5.0)
                except (RejectedError, OutcomeUnknownError, NoActiveNodeError) as error:
                    said = type(error).__name__
                    return True
                return False

            wait_until(is_refused, "the nodes have read the list again")

    target.run_at("attacker", attack)
    return f"answered before; `{said}` once the nodes have read the list"


def send_garbage(target: Target) -> str:
    """Before, in and instead of the handshake."""
    greeting = b"\xff\0\0\0\0\0\0\0\1\x7f\3\1CURVE" + bytes(47)
    seeds = [b"", b"\xff" * 64, os.urandom(200), greeting + os.urandom(300)]

    def attack() -> None:
        for octets in seeds * 25:
            for endpoint in (target.endpoints[0], target.state_endpoint):
                with (
                    socket.create_connection(_address(endpoint), REPLY_S) as connection,
                    contextlib.suppress(OSError),  # the node may hang up first
                ):
                    connection.sendall(octets)
        target.works()

    target.run_at("attacker", attack)
    assert all(node.is_running for node in target.nodes.values())
    return "200 connections end; the next request is answered"


def go_on_as_a_withdrawn_peer(target: Target) -> str:
    """The last one: the pair is one node afterwards."""
    backup = target.nodes["backup"]
    target.withdraw("backup")
    wait_until(lambda: not target.does_primary_hear(), "the primary hears no peer")
    backup.kill()
    backup.launch()
    wait_until(lambda: "lists no" in backup.log_since_start() or not backup.is_running, "it is refused")
    assert not target.does_primary_hear()
    target.run_at("attacker", target.works)
    return "the primary leaves it, and serves; started again it ends or is not heard"


ATTACKS = (
    Attack("somebody in the network", "read traffic", read_the_traffic),
    Attack("somebody in the network", "change traffic", change_the_traffic),
    Attack("a stranger without a key", "connect", connect_without_a_key),
    Attack("a stranger with a key of his own", "connect", connect_with_an_unknown_key),
    Attack("somebody who took a node's address", "get requests", pose_as_a_node),
    Attack("a client", "call a service that is not its own", call_a_foreign_service),
    Attack("a client", "register as a worker, claim an epoch", register_as_a_worker),
    Attack("a worker", "offer another service and get its requests", offer_a_foreign_service),
    Attack(
        "somebody who had the arbiter's address", "keep the nodes from the arbiter", have_the_arbiters_address
    ),
    Attack(
        "anybody but a peer", "hear or forge the pair's state, release the arbiter's ballot", hear_the_pair
    ),
    Attack("somebody whose key was withdrawn", "go on", go_on_with_a_withdrawn_key),
    Attack("anybody", "crash a node with garbage before or in the handshake", send_garbage),
    Attack(
        "a peer whose key was withdrawn",
        "go on, or speak for the peer after a restart",
        go_on_as_a_withdrawn_peer,
    ),
)


def _address(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)
