"""9/TSP: durable requests for Majordomo clients of both versions. The ids are those of the specification."""

from __future__ import annotations

import re
from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from bstar.wire import durable, front, native
from bstar.wire.dialect import Dialect
from bstar.wire.durable import Repeat, Schedule, Service, Submit
from bstar.wire.mdp import MDP01, MDP02, ClientReply, WorkerVerb
from bstar.wire.messages import ErrorCode, Request
from bstar_broker.core.front import Front
from bstar_broker.store.core.settings import StoreSettings
from bstar_broker.store.core.titanic import CLOSE, REPLY, REQUEST
from support.desk import Desk
from support.solo_store import SoloStore

requirement = pytest.mark.requirement
CODECS = {"MDP/0.1": MDP01, "MDP/0.2": MDP02}


class Client:
    """A Majordomo client of one version."""

    def __init__(self, solo: SoloStore, version: str) -> None:
        self._solo = solo
        self.codec = CODECS[version]

    def ask(self, service: bytes, *body: bytes) -> list[bytes]:
        """The body of the one answer; the broker puts the service's name before it."""
        [reply] = self.told(self._solo.say(*self.codec.encode_request(service, list(body)), sender=b"plain"))
        assert reply.is_final
        assert reply.service == service
        return reply.body

    def told(self, sent: Sequence[list[bytes]]) -> list[ClientReply]:
        return [self.codec.decode_for_client(frames[1:]) for frames in sent if frames[0] == b"plain"]


@pytest.fixture
def solo() -> SoloStore:
    return SoloStore()


@pytest.fixture(params=CODECS)
def client(solo: SoloStore, request: pytest.FixtureRequest) -> Client:
    return Client(solo, request.param)


class Worker:
    """A Majordomo worker that knows nothing of all this."""

    def __init__(self, solo: SoloStore, service: bytes = b"echo") -> None:
        self._solo = solo
        self.jobs = self._read(solo.say(*MDP01.encode_ready(service), sender=b"worker"))

    def _read(self, sent: Sequence[list[bytes]]) -> list[tuple[bytes, list[bytes]]]:
        commands = [MDP01.decode_for_worker(frames[1:]) for frames in sent if frames[0] == b"worker"]
        return [(command.client, command.body) for command in commands if command.body]

    def answer(self, *body: bytes) -> None:
        client, _ = self.jobs.pop(0)
        self.jobs += self._read(self._solo.say(*MDP01.encode_final(client, list(body)), sender=b"worker"))


def test_a_schedule_has_no_reply(solo: SoloStore, client: Client) -> None:
    request = durable.new_id(1, b"0123456789")
    row = Schedule(Submit(request, b"echo", [b"tick"]), Repeat(every_ms=10_000))
    solo.ask(Service.SCHEDULE, durable.encode(row))
    assert client.ask(REPLY, request.hex().encode()) == [b"400"]


@requirement("TSP-S-01")
@pytest.mark.parametrize("service", [REQUEST, REPLY, CLOSE])
def test_the_three_services_are_there(client: Client, service: bytes) -> None:
    assert client.ask(b"mmi.service", service) == [b"200"]


@requirement("TSP-S-01")
def test_no_worker_may_offer_them(solo: SoloStore) -> None:
    told = solo.say(*MDP01.encode_ready(REQUEST), sender=b"worker")
    [command] = [MDP01.decode_for_worker(frames[1:]) for frames in told]
    assert command.verb is WorkerVerb.DISCONNECT


@requirement("TSP-S-02")
@requirement("TSP-R-01")
def test_a_request_is_on_disk_before_its_id_is_told(solo: SoloStore) -> None:
    client = Client(solo, "MDP/0.2")
    solo.is_held = True
    asked = MDP02.encode_request(REQUEST, [b"echo", b"hello"])
    assert solo.say(*asked, sender=b"plain") == []
    solo.release()
    [reply] = client.told(solo.sent[-1:])
    status, name = reply.body
    assert status == b"200"
    assert re.fullmatch(b"[0-9a-f]{32}", name)
    assert solo.table.get(bytes.fromhex(name.decode())) is not None


@requirement("TSP-S-02")
def test_every_request_has_an_id_of_its_own(client: Client) -> None:
    names = {client.ask(REQUEST, b"echo", b"hello")[1] for _ in range(20)}
    assert len(names) == 20


@requirement("TSP-S-04")
@requirement("TSP-S-06")
@requirement("TSP-S-07")
def test_the_answer_comes_when_there_is_a_worker_and_stays(solo: SoloStore, client: Client) -> None:
    _, name = client.ask(REQUEST, b"echo", b"hello", b"world")
    assert client.ask(REPLY, name) == [b"300"]
    worker = Worker(solo)
    assert worker.jobs[0][1] == [b"hello", b"world"]
    assert client.ask(REPLY, name) == [b"300"]
    worker.answer(b"HELLO", b"WORLD")
    for _ in range(3):
        assert client.ask(REPLY, name) == [b"200", b"HELLO", b"WORLD"]


@requirement("TSP-C-03")
def test_another_client_may_fetch_and_close(solo: SoloStore) -> None:
    _, name = Client(solo, "MDP/0.1").ask(REQUEST, b"echo", b"hello")
    Worker(solo).answer(b"HELLO")
    other = Client(solo, "MDP/0.2")
    assert other.ask(REPLY, name) == [b"200", b"HELLO"]
    assert other.ask(CLOSE, name) == [b"200"]


@requirement("TSP-S-05")
def test_close_removes_and_says_200_in_every_state(solo: SoloStore, client: Client) -> None:
    _, name = client.ask(REQUEST, b"echo", b"hello")
    assert client.ask(CLOSE, name) == [b"200"]
    assert solo.table.records == {}
    assert client.ask(REPLY, name) == [b"400"]
    assert client.ask(CLOSE, name) == [b"200"]
    assert client.ask(CLOSE, b"no id at all") == [b"200"]


@requirement("TSP-R-06")
def test_an_answer_that_comes_after_the_close_is_thrown_away(solo: SoloStore, client: Client) -> None:
    _, name = client.ask(REQUEST, b"echo", b"hello")
    worker = Worker(solo)
    client.ask(CLOSE, name)
    worker.answer(b"late")
    assert client.ask(REPLY, name) == [b"400"]


@requirement("TSP-S-03")
@requirement("TSP-R-02")
@pytest.mark.parametrize(
    "name", [b"", b"x", b"../../etc/passwd", b"g" * 32, b"0" * 31, b"0" * 33, b"\xff" * 32, b"0" * 32]
)
def test_what_is_no_id_of_a_request_is_unknown(client: Client, name: bytes) -> None:
    assert client.ask(REPLY, name) == [b"400"]


@requirement("TSP-R-02")
def test_ids_may_be_written_in_capitals(solo: SoloStore, client: Client) -> None:
    _, name = client.ask(REQUEST, b"echo", b"hello")
    assert client.ask(REPLY, name.upper()) == [b"300"]


@requirement("TSP-R-03")
@pytest.mark.parametrize(
    "body", [[b"echo"], [b"", b"hello"], [b"x" * 256, b"hello"], [b"mmi.state", b"hello"]]
)
def test_a_request_without_service_or_body_is_not_stored(
    solo: SoloStore, client: Client, body: list[bytes]
) -> None:
    assert client.ask(REQUEST, *body) == [b"400"]
    assert solo.table.records == {}


@requirement("TSP-S-03")
@requirement("TSP-C-02")
def test_a_store_that_cannot_take_it_now_says_500(solo: SoloStore, client: Client) -> None:
    solo.replica.copies = 1
    assert client.ask(REQUEST, b"echo", b"hello") == [b"500"]


@requirement("TSP-C-01")
def test_a_status_stands_alone_in_its_frame(client: Client) -> None:
    """Published clients compare the frame, not its first three digits."""
    assert client.ask(REPLY, b"?") == [b"400"]


@requirement("TSP-R-04")
@pytest.mark.parametrize("name", [b"titanic.request", b"titanic.foo", b"titanic."])
def test_a_node_with_a_store_refuses_workers_for_all_names_of_titanic(solo: SoloStore, name: bytes) -> None:
    """As for mmi. A node without a store takes them: then a Titanic of the user's own may register."""
    for codec in CODECS.values():
        [told] = solo.say(*codec.encode_ready(name), sender=b"worker")
        command = codec.decode_for_worker(told[1:])
        assert command.verb is WorkerVerb.DISCONNECT
    desk = Desk()
    assert desk.ready02(b"worker", name) == []
    assert [worker.service.name for worker in desk.ledger.workers.values()] == [name]


def test_a_slow_worker_gets_the_request_once(solo: SoloStore, client: Client) -> None:
    _, name = client.ask(REQUEST, b"echo", b"hello")
    worker = Worker(solo)
    before = len(solo.sent)
    solo.wait(20.0)
    again = [frames for frames in solo.sent[before:] if frames[0] == b"worker" and b"hello" in frames]
    assert again == []
    worker.answer(b"HELLO")
    assert client.ask(REPLY, name) == [b"200", b"HELLO"]


@requirement("TSP-R-05")
def test_answers_that_nobody_closes_are_forgotten_in_time() -> None:
    solo = SoloStore(StoreSettings(keep_answers_s=60.0))
    client = Client(solo, "MDP/0.1")
    _, name = client.ask(REQUEST, b"echo", b"hello")
    Worker(solo).answer(b"HELLO")
    solo.wait(130.0)
    assert client.ask(REPLY, name) == [b"400"]


def test_a_request_whose_attempts_have_all_failed_is_unknown() -> None:
    """Asking again does not help (TSP-C-02). An operator sees the dead letter."""
    solo = SoloStore(StoreSettings(attempts_max=1))
    client = Client(solo, "MDP/0.1")
    _, name = client.ask(REQUEST, b"echo", b"hello")
    [*_, job] = [native.decode(each[1:]) for each in solo.say(*native.encode_ready(b"echo"), sender=b"n")]
    solo.say(*native.encode_error(job.identity, job.epoch, ErrorCode.HANDLER_FAILED, b"no"), sender=b"n")
    assert client.ask(REPLY, name) == [b"400"]


@requirement("TSP-S-02")
def test_a_request_that_lost_its_second_copy_on_the_way_is_not_acknowledged(solo: SoloStore) -> None:
    client = Client(solo, "MDP/0.2")
    solo.is_held = True
    assert solo.say(*MDP02.encode_request(REQUEST, [b"echo", b"hello"]), sender=b"plain") == []
    solo.replica.copies = 1
    solo.release()
    [reply] = client.told(solo.sent[-1:])
    assert reply.body == [b"500"], "the client asks again (TSP-C-02)"
    store = solo.node.store
    assert store is not None
    assert store.state(solo.now).acknowledged == 0


@requirement("TSP-C-02")
def test_the_operation_that_is_the_vote_waits_until_the_store_leads(solo: SoloStore, client: Client) -> None:
    """Published clients end at 500, and a failover shall cost them a timeout of their own, no more."""
    _, name = client.ask(REQUEST, b"echo", b"hello")
    Worker(solo).answer(b"HELLO")
    solo.step_down()
    solo.miss_peer()
    solo.is_held = True
    codec = client.codec
    assert solo.say(*codec.encode_request(REPLY, [name]), sender=b"plain") == []
    assert solo.node.is_active
    before = len(solo.sent)
    solo.release()
    [reply] = client.told(solo.sent[before:])
    assert reply.body == [b"200", b"HELLO"]


@requirement("TSP-C-02")
def test_the_operation_that_is_the_vote_waits_until_the_majority_is_won_and_the_store_leads() -> None:
    solo = SoloStore(has_arbiter=True)
    client = Client(solo, "MDP/0.1")
    solo.step_down()
    solo.miss_peer()
    assert solo.say(*client.codec.encode_request(REQUEST, [b"echo", b"hello"]), sender=b"plain") == []
    assert not solo.node.is_active
    before = len(solo.sent)
    solo.grant()
    [reply] = client.told(solo.sent[before:])
    assert reply.body[0] == b"200"
    assert len(solo.table.records) == 1


def test_an_operation_that_no_majority_follows_is_forgotten() -> None:
    solo = SoloStore(has_arbiter=True)
    solo.step_down()
    solo.miss_peer()
    assert solo.say(*MDP01.encode_request(REQUEST, [b"echo", b"hello"]), sender=b"plain") == []
    solo.miss_peer()
    assert solo.node.state(solo.now).broker.drops["not-active"] == 1
    assert solo.say(*MDP01.encode_request(REQUEST, [b"echo", b"again"]), sender=b"plain") == []
    solo.grant()
    assert len(solo.table.records) == 1


def test_a_front_hears_of_an_operation_that_no_majority_follows() -> None:
    """It remembers what it has asked until it has an answer."""
    asker = Mock(Front)
    asker.name = "emq"
    asker.next_deadline.return_value = None
    for told in (asker.deliver, asker.activate, asker.deactivate, asker.handle_timer):
        told.return_value = []
    solo = SoloStore(has_arbiter=True, make_fronts=lambda inlet: [asker])
    solo.step_down()
    solo.miss_peer()
    body = [durable.encode(Submit(bytes(24), b"echo", [b"hello"]))]
    asked = Request(front.peer_id("emq", "clients", b"c"), Dialect.FRONT, (b"e",), Service.SUBMIT.value, body)
    solo.carry_out(solo.node.receive_message(asked, solo.now, ""))
    asker.deliver.assert_not_called()
    solo.miss_peer()
    order: front.Order = asker.deliver.call_args.args[0]
    assert (order.verb, order.envelope) == (front.Verb.NOT_ACTIVE, asked.envelope)
    assert solo.node.state(solo.now).broker.drops["not-active"] == 1


def test_only_so_many_operations_wait_for_the_store(solo: SoloStore) -> None:
    client = Client(solo, "MDP/0.2")
    solo.step_down()
    solo.miss_peer()
    solo.is_held = True
    body = [b"echo", bytes(3 << 20)]
    assert solo.say(*MDP02.encode_request(REQUEST, body), sender=b"plain") == []
    [reply] = client.told(solo.say(*MDP02.encode_request(REQUEST, body), sender=b"plain"))
    assert reply.body == [b"500"]


def test_what_waits_for_the_store_is_forgotten_when_the_peer_serves(solo: SoloStore, client: Client) -> None:
    solo.step_down()
    solo.miss_peer()
    solo.is_held = True
    assert solo.say(*client.codec.encode_request(REQUEST, [b"echo", b"hello"]), sender=b"plain") == []
    solo.step_down()
    solo.release()
    assert solo.table.records == {}
    assert client.told(solo.sent) == []


def test_a_store_in_trouble_lets_nobody_wait(solo: SoloStore, client: Client) -> None:
    solo.step_down()
    solo.miss_peer()
    solo.is_held = True
    solo.replica.trouble = "the store's disk fails"
    assert client.ask(REPLY, b"0" * 32) == [b"500"]
