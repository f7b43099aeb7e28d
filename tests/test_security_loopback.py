"""A pair with keys, and those who attack it: a test for each row of the threat model in docs/security.md."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import zmq

from bstar.errors import ClosedError, OutcomeUnknownError, RejectedError
from bstar.security import KeyPair, Security, new_key, read_key
from bstar.security.keys import write_key
from bstar.wire import native
from bstar.wire.mdp import MDP02, WorkerVerb
from bstar_client import HAClient, Request, Worker, node_states
from bstar_testing import Pair, wait_until
from bstar_testing.nodes import COMMAND
from bstar_testing.processes import environment
from chaos.attacks import ATTACKS, Attack, Target, go_on_as_a_withdrawn_peer, read_the_traffic

pytestmark = pytest.mark.loopback

REPLY_S = 60.0
PERL_PROGRAM = Path(__file__).parent / "support" / "plain_curve.pl"
# Long enough that a reply that should not come would have come; nothing is measured.
NOTHING_MS = 1_500


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("secure"), is_secure=True, has_arbiter=True) as made:
        assert made.keys is not None
        made.keys.add("shop", "calls:price,stock.*")
        made.keys.add("seller", "offers:price")
        made.keys.add("store", "offers:stock.*")
        made.start()
        made.start_workers(1, "echo", service="price")
        yield made
        assert not made.odd_ends


@contextlib.contextmanager
def dealer(pair: Pair, name: str = "", *, routing_id: bytes = b"") -> Iterator[zmq.Socket[bytes]]:
    """A bare DEALER at the primary, of any program: with a key of the pair's list, or none."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as bare:
        bare.linger = 0
        bare.rcvtimeo = NOTHING_MS
        if routing_id:
            bare.routing_id = routing_id
        security = pair.keys.security(name) if name and pair.keys else None
        if security is not None:
            bare.curve_publickey, bare.curve_secretkey = security.key.public, security.key.secret
            bare.curve_serverkey = security.servers[0]
        bare.connect(pair.primary.endpoint)
        yield bare


def logs(pair: Pair) -> str:
    return "\n".join(path.read_text() for path in pair.folder.glob("*.log"))


def test_a_pair_with_keys_serves_and_fails_over(pair: Pair) -> None:
    client = pair.client()
    assert client.request("price", b"1", timeout=REPLY_S).frames == (b"1",)
    killed = pair.kill_active()
    assert client.request("price", b"2", timeout=REPLY_S).frames == (b"2",)
    killed.launch()
    killed.wait_for_state("PASSIVE")
    assert pair.arbiter is not None
    assert "ballot" in pair.arbiter.log()


def test_a_client_calls_what_its_entry_lists_and_nothing_else(pair: Pair) -> None:
    assert pair.keys is not None
    with HAClient(pair.endpoints, security=pair.keys.security("shop")) as client:
        assert client.request("price", b"x", timeout=REPLY_S).frames == (b"x",)
        with pytest.raises(RejectedError, match='shop may not call service "payroll"') as caught:
            client.request("payroll", b"x", timeout=REPLY_S)
        assert not caught.value.may_have_executed
        with pytest.raises(RejectedError):
            list(client.map("payroll", [b"1", b"2", b"3"], timeout=REPLY_S))


def perl(pair: Pair, role: str, name: str, *arguments: str) -> subprocess.Popen[str]:
    """A plain program on another library and the system's own libzmq, connected to the active node."""
    assert pair.keys is not None
    if subprocess.run(["perl", "-MZMQ::FFI", "-e", "1"], capture_output=True, check=False).returncode:
        lack = "Perl's ZMQ::FFI is not there; Debian: apt-get install --no-install-recommends libzmq-ffi-perl"
        pytest.fail(lack) if os.environ.get("CI") == "true" else pytest.skip(lack)
    active, folder = pair.active(), pair.keys.folder
    node = "primary" if active is pair.primary else "backup"
    files = [str(folder / f"{name}.key"), str(folder / f"{node}.pub")]
    command = ["perl", str(PERL_PROGRAM), role, active.endpoint, *files, "stock.plain", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_plain_programs_of_another_library_use_curve_unchanged(pair: Pair) -> None:
    with perl(pair, "worker", "store") as worker:
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
            with perl(pair, "client", "shop", "hello") as client:
                printed, _ = client.communicate(timeout=REPLY_S)
                assert printed == "HELLO\n"
        finally:
            worker.kill()


def test_an_operator_sees_the_state_and_others_do_not(pair: Pair) -> None:
    assert pair.keys is not None
    by_operator = node_states(pair.endpoints, REPLY_S, pair.keys.security("operator"))
    assert all(report.state for report in by_operator)
    (report, _) = node_states(pair.endpoints, REPLY_S, pair.keys.security("shop"))
    assert report.state is None
    assert "may not ask" in (report.error or "")


def target_of(pair: Pair) -> Target:
    """For the attacks of docs/security.md."""
    assert pair.keys is not None
    assert pair.arbiter is not None
    return Target(
        endpoints=(pair.primary.endpoint, pair.backup.endpoint),
        state_endpoint=pair.primary.state_endpoint,
        arbiter_endpoint=pair.primary.config["endpoints"]["arbiter"],
        keys=pair.keys.folder,
        nodes={"primary": pair.primary, "backup": pair.backup},
        arbiter=pair.arbiter,
        worker="seller",
        operator="operator",
    )


# Those that need a network of several hosts are in chaos-tests/test_attacks.py alone.
@pytest.mark.parametrize(
    "attack",
    [each for each in ATTACKS if each.make not in (read_the_traffic, go_on_as_a_withdrawn_peer)],
    ids=lambda attack: attack.make.__name__,
)
def test_the_attack_gets_nowhere(pair: Pair, attack: Attack) -> None:
    attack.make(target_of(pair))


def test_a_peer_whose_key_is_withdrawn_is_heard_no_more(own_pair: Pair) -> None:
    assert own_pair.keys is not None
    own_pair.keys.add("shop", "calls:price")
    go_on_as_a_withdrawn_peer(target_of(own_pair))


def test_a_key_is_changed_without_an_outage(pair: Pair) -> None:
    """Rotation: both keys are good for a while."""
    assert pair.keys is not None
    first, second = pair.keys.add("turning", "calls:price"), new_key("turning")
    lines = pair.keys._lines
    at = next(number for number, line in enumerate(lines) if line.startswith("  turning:"))
    servers = pair.keys.security("client").servers
    with HAClient(pair.endpoints, security=Security(first, servers=servers)) as client:
        client.request("price", b"x", timeout=REPLY_S)
        lines[at] = lines[at].replace("keys: [", f"keys: ['{second.public.decode()}', ")
        pair.keys.write()
        with HAClient(pair.endpoints, security=Security(second, servers=servers)) as other:
            assert other.request("price", b"x", timeout=REPLY_S).frames == (b"x",)
        assert client.request("price", b"x", timeout=REPLY_S).frames == (b"x",)


def test_a_client_trusts_a_node_by_any_of_the_keys_it_was_given(pair: Pair) -> None:
    """So a node gets a new key without an outage."""
    assert pair.keys is not None
    security = pair.keys.security("client")
    others = [new_key(f"old{number}").public for number in range(3)]
    mixed = Security(security.key, servers=[*others, *security.servers])
    with HAClient(pair.endpoints, security=mixed) as client:
        assert client.request("price", b"x", timeout=REPLY_S).frames == (b"x",)


def test_no_secret_key_is_written_anywhere(pair: Pair) -> None:
    """Not to a log, a status, a metric, an error, or the process list."""
    assert pair.keys is not None
    secrets = [
        line.split()[1]
        for path in pair.keys.folder.glob("*.key")
        for line in path.read_text().splitlines()
        if line.startswith("secret:")
    ]
    assert len(secrets) >= 6
    texts = [logs(pair)]
    for node in pair.nodes:
        for page in ("/metrics", "/status", "/readyz"):
            with contextlib.suppress(subprocess.CalledProcessError):
                texts.append(_fetch(node.http_url + page))
    texts += [Path(f"/proc/{process.pid}/cmdline").read_text() for process in pair.processes if process.pid]
    said = subprocess.run(
        [*COMMAND, "status", "--endpoints", ",".join(pair.endpoints), "--json"],
        capture_output=True,
        text=True,
        env=environment() | pair.keys.variables("operator"),
        check=False,
    )
    assert '"healthy"' in said.stdout
    texts += [said.stdout, said.stderr]
    assert not [secret for secret in secrets for text in texts if secret in text]


def _fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=REPLY_S) as response:
            return str(response.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def test_a_worker_with_a_key_works_for_clients_with_keys(pair: Pair) -> None:
    assert pair.keys is not None
    pair.keys.add("maker", "offers:made.*")
    security = pair.keys.security("maker")
    worker = Worker(pair.endpoints, "made.here", lambda request: b"made", security=security)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        assert pair.client().request("made.here", b"x", timeout=REPLY_S).frames == (b"made",)
    finally:
        worker.stop()
        thread.join()


@pytest.fixture
def own_pair(tmp_path: Path) -> Iterator[Pair]:
    """A pair for one test, which changes the keys of its nodes."""
    with Pair(tmp_path, is_secure=True, has_arbiter=True) as made:
        made.start()
        made.start_workers(1, "echo", service="price")
        yield made


def _is_fresh(pair: Pair) -> bool:
    states = [node.look() for node in pair.nodes]
    return all(state is not None and state.pair.is_peer_fresh for state in states)


def _replace_key(pair: Pair, name: str, *keys: KeyPair) -> None:
    assert pair.keys is not None
    lines = pair.keys._lines
    at = next(number for number, line in enumerate(lines) if line.startswith(f"  {name}:"))
    listed = ", ".join(f"'{key.public.decode()}'" for key in keys)
    lines[at] = re.sub(r"keys: \[[^']*('[^']*'[^']*?)+\]", lambda _: f"keys: [{listed}]", lines[at])
    pair.keys.write()


def _lists_read(pair: Pair) -> int:
    return sum(node.log().count("was read again") for node in pair.nodes)


def test_a_node_gets_a_new_key_and_its_peer_hears_it(own_pair: Pair) -> None:
    keys = own_pair.keys
    assert keys is not None
    old, new = read_key(keys.path("primary")), new_key("primary")
    _replace_key(own_pair, "primary", old, new)
    wait_until(lambda: _lists_read(own_pair) == 2, "both nodes have read the list")
    own_pair.primary.stop()
    keys.path("primary").unlink()
    keys.path("primary").with_suffix(".pub").unlink()
    write_key(new, keys.folder)
    own_pair.primary.launch()
    wait_until(lambda: _is_fresh(own_pair), "the nodes hear each other")
    _replace_key(own_pair, "primary", new)
    wait_until(lambda: own_pair.backup.log().count("was read again") == 2, "the old key is retired")
    wait_until(lambda: _is_fresh(own_pair), "the nodes still hear each other")


def test_a_worker_whose_key_is_withdrawn_gets_nothing_more(own_pair: Pair) -> None:
    assert own_pair.keys is not None
    own_pair.keys.remove("worker")
    for node in own_pair.nodes:
        node.wait_for_workers(0)


@contextlib.contextmanager
def claims(pair: Pair, name: str, routing_ids: Iterable[bytes]) -> Iterator[list[zmq.Socket[bytes]]]:
    """Connections of one principal with these routing ids, but for those that a live connection has."""
    with contextlib.ExitStack() as open_ones:
        claimed = []
        for routing_id in routing_ids:
            bare = open_ones.enter_context(dealer(pair, name, routing_id=routing_id))
            bare.send_multipart(native.encode_ping())
            with contextlib.suppress(zmq.Again):
                assert native.decode(bare.recv_multipart()).command == native.PONG
                claimed.append(bare)
        assert claimed
        yield claimed


def test_nobody_gets_the_reply_of_a_client_that_has_gone_by_the_routing_ids_after_his_own(
    own_pair: Pair,
) -> None:
    """A worker of plain MDP learns the routing id of his own client. A counter would give away the others."""
    keys = own_pair.keys
    assert keys is not None
    keys.add("insider", "offers:mirror", "calls:mirror")
    wait_until(lambda: _lists_read(own_pair) == 2, "both nodes know the insider")
    began, may_end = threading.Event(), threading.Event()

    def slow(request: Request) -> bytes:
        began.set()
        assert may_end.wait(REPLY_S)
        return b"the secret"

    worker = Worker(own_pair.endpoints, "slow", slow, security=keys.security("worker"))
    with dealer(own_pair, "insider") as mirror, dealer(own_pair, "insider") as own, worker:
        mirror.rcvtimeo = int(REPLY_S * 1_000)
        mirror.send_multipart(MDP02.encode_ready(b"mirror"))
        own.send_multipart(MDP02.encode_request(b"mirror", [b"x"]))
        while (heard := MDP02.decode_for_worker(mirror.recv_multipart())).verb is not WorkerVerb.REQUEST:
            pass
        routing_id = bytes.fromhex(heard.client.decode().removeprefix("hex:"))
        number = int.from_bytes(routing_id[1:])
        assert routing_id == b"\0" + number.to_bytes(4)
        own_pair.primary.wait_for(
            "a worker for the service", lambda state: state.broker.workers == 2 + len(own_pair.workers)
        )
        victim = HAClient(own_pair.endpoints, security=keys.security("client"))
        ended = threading.Thread(target=_ask_until_closed, args=(victim, "slow"))
        ended.start()
        assert began.wait(REPLY_S)
        victim.close()
        ended.join()
        guesses = [b"\0" + (number + after).to_bytes(4) for after in range(1, 33)]
        with claims(own_pair, "insider", guesses) as claimed:
            may_end.set()
            own_pair.primary.wait_for(
                "the slow request has ended",
                lambda state: all(
                    each.in_flight == 0 for each in state.broker.services if each.service == "slow"
                ),
            )
            poller = zmq.Poller()
            for each in claimed:
                poller.register(each, zmq.POLLIN)
            assert not poller.poll(NOTHING_MS)


def _ask_until_closed(client: HAClient, service: str) -> None:
    with pytest.raises((ClosedError, OutcomeUnknownError)):
        client.request(service, b"x", timeout=REPLY_S)


def test_a_node_does_not_end_because_somebody_claims_the_routing_ids_that_libzmq_gives_next(
    own_pair: Pair,
) -> None:
    """Without a seed C's rand() begins with the same numbers in each process."""
    libc = ctypes.CDLL(None)
    libc.srand(1)
    firsts = [libc.rand() for _ in range(24)]
    likely = {
        (first & 0x7FFFFFFF | high << 31) + after for first in firsts for high in (0, 1) for after in (0, 1)
    }
    with claims(own_pair, "client", (b"\0" + number.to_bytes(4) for number in likely)):
        for _ in range(4):
            with dealer(own_pair, "client") as bare:
                bare.send_multipart(native.encode_ping())
                bare.recv_multipart()
    assert own_pair.primary.is_running
