"""A busy process is not taken for a dead one: keepalives at the broker and the worker, without sockets."""

import pytest

from bstar.wire import native, native_broker
from bstar.wire.messages import NodeStatus
from bstar_broker.core import Notice
from bstar_broker.core.management import broker_state, worker_state
from bstar_client.core.outputs import Send
from bstar_client.core.worker.dialects import Mdp02Worker, NativeWorker, WorkerDialect
from bstar_client.core.worker.outputs import Begin, KeepAlive, Late, Lost, WorkerOutput
from bstar_client.core.worker.session import WorkerCore
from support.desk import Desk, heard, ident
from support.work import asked

KEEPALIVE = b"\x01" * 24
OTHER = b"\x02" * 24
HEARTBEAT = native.encode_heartbeat(7)
EXPIRY_S = 4.0
BUSY_S = 20.0


def desk() -> Desk:
    """A broker whose workers expire after 4 s, and are stuck for 20 s at most."""
    return Desk(worker_heartbeat_interval_s=1.0, worker_liveness=4, busy_timeout_s=BUSY_S)


def probes(frames: list[list[bytes]], keepalive: bytes = KEEPALIVE) -> int:
    return sum(each[0] == keepalive for each in frames)


def given(frames: list[list[bytes]]) -> list[bytes]:
    """Who is given a request."""
    return [each[0] for each in frames if each[1][2] == native.REQUEST]


# --- the broker ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-B-24")
def test_a_busy_worker_whose_keepalive_stands_keeps_its_request() -> None:
    it = desk()
    it.ready(b"w", keepalive=KEEPALIVE)
    it.ready(b"v", keepalive=OTHER)
    assert given(it.request(b"c", 1)) == [b"w"]
    frames: list[list[bytes]] = []
    for _ in range(int(BUSY_S) - 2):
        it.send(b"v", *HEARTBEAT)
        frames += it.wait(1.0)
    assert probes(frames) >= 10
    assert probes(frames, OTHER) == 0
    assert given(frames) == []
    (reply,) = it.final(b"w", 1)
    assert (reply[0], heard(reply).identity) == (b"c", ident(1))
    assert it.ledger.services[b"echo"].tally.redelivered == 0


def test_a_busy_worker_whose_keepalive_is_gone_is_lost_at_its_expiry() -> None:
    it = desk()
    it.ready(b"w", keepalive=KEEPALIVE)
    it.ready(b"v", keepalive=OTHER)
    it.request(b"c", 1)
    frames: list[list[bytes]] = []
    while not probes(frames):
        it.send(b"v", *HEARTBEAT)
        frames += it.wait(0.25)
    assert it.now <= EXPIRY_S + 0.5
    outputs = it.broker.unreachable(KEEPALIVE, it.now)
    assert given([output.frames for output in outputs if hasattr(output, "frames")]) == [b"v"]
    assert b"w" not in it.ledger.workers


def test_a_worker_that_is_stuck_gets_no_requests_until_it_answers() -> None:
    it = desk()
    it.ready(b"w", credit=2, keepalive=KEEPALIVE)
    it.request(b"c", 1)
    it.wait(EXPIRY_S + 1)
    assert given(it.request(b"c", 2)) == []
    assert given(it.send(b"w", *HEARTBEAT)) == [b"w"]


@pytest.mark.parametrize("word", ["final", "partial", "error", "heartbeat"])
def test_whatever_a_stuck_worker_says_ends_that(word: str) -> None:
    it = desk()
    it.ready(b"w", keepalive=KEEPALIVE)
    it.request(b"c", 1)
    it.wait(EXPIRY_S + 1)
    service = it.ledger.services[b"echo"]
    assert service.stuck == 1
    words = {
        "final": native.encode_final(ident(1), 7, 0, [b"done"]),
        "partial": native.encode_partial(ident(1), 7, 0, [b"part"]),
        "error": native.encode_error(ident(1), 7, 1, b"no"),
        "heartbeat": HEARTBEAT,
    }
    it.send(b"w", *words[word])
    assert service.stuck == 0
    # A probe that was under way is about nothing any more.
    it.broker.unreachable(KEEPALIVE, it.now)
    assert b"w" in it.ledger.workers


def test_a_worker_of_batches_that_is_stuck_answers_its_batch() -> None:
    it = desk()
    it.ready(b"w", credit=4, takes_batches=True, keepalive=KEEPALIVE)
    it.requests(b"c", [1, 2, 3])
    it.wait(EXPIRY_S + 1)
    assert it.ledger.services[b"echo"].stuck == 1
    it.finals(b"w", [1, 2, 3])
    service = it.ledger.services[b"echo"]
    assert (service.stuck, service.tally.answered, service.tally.redelivered) == (0, 3, 0)
    assert len(service.idle) == 1


def test_a_worker_that_is_stuck_for_too_long_is_lost() -> None:
    it = desk()
    it.ready(b"w", keepalive=KEEPALIVE)
    it.request(b"c", 1)
    it.wait(BUSY_S + 2)
    assert b"w" not in it.ledger.workers
    assert it.ledger.services[b"echo"].stuck == 0
    assert given(it.ready(b"v")) == [b"v"]


def test_an_idle_silent_worker_is_forgotten_at_its_expiry() -> None:
    it = desk()
    it.ready(b"w", keepalive=KEEPALIVE)
    assert probes(it.wait(EXPIRY_S + 1)) == 0
    assert it.ledger.workers == {}
    # Another worker may have that keepalive now: nothing of the first is left.
    it.ready(b"v", keepalive=KEEPALIVE)
    assert it.ledger.workers[b"v"].keepalive == KEEPALIVE


def test_a_worker_without_a_keepalive_is_lost_at_its_expiry() -> None:
    it = desk()
    it.ready(b"w")
    it.request(b"c", 1)
    it.wait(EXPIRY_S + 1)
    assert it.ledger.workers == {}


def test_a_keepalive_that_another_has_is_nobodys() -> None:
    it = desk()
    it.ready(b"w" * 24)
    it.ready(b"v", keepalive=b"w" * 24)
    it.ready(b"u", keepalive=KEEPALIVE)
    it.ready(b"t", keepalive=KEEPALIVE)
    assert [it.ledger.workers[each].keepalive for each in (b"v", b"u", b"t")] == [b"", KEEPALIVE, b""]
    it.wait(EXPIRY_S + 1)
    assert it.ledger.workers == {}


def test_time_in_which_the_broker_was_away_is_no_silence_of_a_stuck_worker() -> None:
    it = desk()
    it.ready(b"w", keepalive=KEEPALIVE)
    it.request(b"c", 1)
    it.wait(EXPIRY_S + 1)
    # Its own libzmq may have closed the keepalive meanwhile: it is not probed before that can be back.
    assert probes(it.away(3 * BUSY_S)) == 0
    assert it.ledger.services[b"echo"].stuck == 1
    assert probes(it.wait(2.0)) >= 1


def test_keepalives_have_a_heartbeat_interval_to_come_back_after_the_broker_was_away() -> None:
    """The broker's libzmq may have closed that of a worker which is about to be probed."""
    it = desk()
    it.ready(b"w", keepalive=KEEPALIVE)
    it.request(b"c", 1)
    it.wait(EXPIRY_S - 0.01)
    assert probes(it.away(2.0) + it.wait(0.9)) == 0
    assert probes(it.wait(0.6)) == 1


def test_a_stuck_worker_is_told_in_the_log_with_its_service_and_its_seconds() -> None:
    it = desk()
    it.ready(b"w", keepalive=KEEPALIVE)
    it.request(b"c", 1)
    notices: list[str] = []
    while it.now < 10.0:
        it.now = it.broker.next_deadline()
        notices += [each.text for each in it.broker.handle_timer(it.now) if isinstance(each, Notice)]
    (text,) = notices
    assert b"w".hex() in text
    assert "echo" in text
    assert "has not answered for 5." in text
    state = broker_state(it.ledger, it.now).services[0]
    assert (state.stuck, state.stalls) == (1, 1)
    assert worker_state(it.ledger.workers[b"w"], it.now).silent_s == pytest.approx(it.now, abs=0.1)
    message = native.encode_final(ident(1), 7, 0, [b"done"])
    outputs = it.broker.receive(native_broker.decode_peer([b"w", *message]), it.now)
    (text,) = (each.text for each in outputs if isinstance(each, Notice))
    assert "answers again, after 10." in text


def test_what_a_client_is_told_says_how_the_worker_was_lost() -> None:
    it = Desk(worker_heartbeat_interval_s=1.0, worker_liveness=4, deliveries_max=1)
    it.ready(b"w")
    it.request(b"c", 1)
    (error,) = (heard(frames) for frames in it.wait(EXPIRY_S + 1) if frames[0] == b"c")
    assert error.body == [b"1 workers were lost with this request; the last one fell silent"]


# --- the worker ---------------------------------------------------------------------------------------------


def worker(dialect: WorkerDialect | None = None, name: bytes = b"\x01" * 20) -> WorkerCore:
    return WorkerCore(
        ["tcp://a", "tcp://b"], b"echo", dialect or NativeWorker(), jitter=lambda: 0.5, name=name
    )


def welcome(core: WorkerCore, node: int, now: float) -> list[WorkerOutput]:
    outputs = core.connected(node, now)
    told = NodeStatus(3, 7, 0, 0, 0, 100, 300)
    return outputs + core.receive(node, native_broker.CODEC.welcome(b"", (), told, 250, 1000)[1:], now)


@pytest.mark.requirement("BSN-W-13")
def test_a_worker_names_its_keepalive_and_makes_it_when_it_knows_its_expiry() -> None:
    core = worker()
    ready, _, keepalive, _ = welcome(core, 0, 0.0)
    assert isinstance(ready, Send)
    assert isinstance(keepalive, KeepAlive)
    assert ready.frames[0][4:28] == keepalive.routing_id
    # A process that stops is found before its expiry is over, less the interval of its last heartbeat.
    assert keepalive.ttl_ms <= 750
    assert keepalive.interval_ms * 4 <= keepalive.ttl_ms
    other = next(each for each in welcome(core, 1, 0.0) if isinstance(each, KeepAlive))
    assert other.routing_id != keepalive.routing_id
    core.disconnected(0, 1.0)
    again = next(each for each in welcome(core, 0, 2.0) if isinstance(each, KeepAlive))
    assert len({keepalive.routing_id, other.routing_id, again.routing_id}) == 3


def test_a_worker_of_plain_mdp_has_no_keepalive() -> None:
    core = worker(Mdp02Worker(), b"")
    assert not [each for each in core.connected(0, 0.0) if isinstance(each, KeepAlive)]


def take(core: WorkerCore, now: float) -> Begin:
    request = native_broker.CODEC.request(b"", (), asked([b"body"]), ident(1), 0, 7, False)
    (begin,) = core.receive(0, request[1:], now)
    assert isinstance(begin, Begin)
    core.claim(begin.jobs[0])
    return begin


def test_a_worker_that_could_not_answer_for_long_says_so_once_and_goes_on() -> None:
    core = worker()
    welcome(core, 0, 0.0)
    welcome(core, 1, 0.0)
    (job,) = take(core, 0.1).jobs
    # The shell comes back after five seconds with the reply, and reads what has come before it looks at time.
    outputs = core.finished(job, [b"done"], 5.0)
    for node in (0, 1):
        outputs += core.receive(node, native.encode_heartbeat(7), 5.0)
    outputs += core.handle_timer(5.0)
    (late,) = (each for each in outputs if isinstance(each, Late))
    assert late == Late(4.75, True)
    assert not [each for each in outputs if isinstance(each, Lost)]
    assert [each.node for each in outputs if isinstance(each, Send)] == [0, 1]


def test_a_process_that_was_stopped_blames_no_handler() -> None:
    core = worker()
    welcome(core, 0, 0.0)
    core.receive(0, native.encode_heartbeat(7), 5.0)
    (late,) = (each for each in core.handle_timer(5.0) if isinstance(each, Late))
    assert not late.is_busy


def test_a_worker_on_time_says_nothing() -> None:
    core = worker()
    welcome(core, 0, 0.0)
    (job,) = take(core, 0.1).jobs
    outputs: list[WorkerOutput] = []
    for tick in range(1, 20):
        outputs += core.receive(0, native.encode_heartbeat(7), tick / 4)
        outputs += core.handle_timer(tick / 4)
    outputs += core.finished(job, [b"done"], 5.0)
    assert not [each for each in outputs if isinstance(each, Late)]
