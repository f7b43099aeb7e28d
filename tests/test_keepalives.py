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
EXPIRY_S = 4.0
BUSY_S = 20.0


def desk() -> Desk:
    """A broker whose workers expire after 4 s, and are stuck for 20 s at most."""
    return Desk(worker_heartbeat_interval_s=1.0, worker_liveness=4, busy_timeout_s=BUSY_S)


# --- the broker ---------------------------------------------------------------------------------------------


def test_a_keepalive_that_another_has_is_nobodys() -> None:
    it = desk()
    it.ready(b"w" * 24)
    it.ready(b"v", keepalive=b"w" * 24)
    it.ready(b"u", keepalive=KEEPALIVE)
    it.ready(b"t", keepalive=KEEPALIVE)
    assert [it.ledger.workers[each].keepalive for each in (b"v", b"u", b"t")] == [b"", KEEPALIVE, b""]
    it.wait(EXPIRY_S + 1)
    assert it.ledger.workers == {}


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


def test_a_node_that_pauses_again_and_again_gives_up_a_dead_worker() -> None:
    it = desk()
    it.ready(b"w", keepalive=KEEPALIVE)
    it.request(b"c", 1)
    for _ in range(2 * int(BUSY_S)):
        it.wait(1.0)
        it.now += 0.3
        it.broker.stalled(0.3)
    assert it.ledger.workers == {}


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
