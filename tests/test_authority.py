"""What each principal may do at a node, by the key of its connection and never by its routing id."""

from __future__ import annotations

import pytest

from bstar.security import Principal, Quota
from bstar.security.principals import Patterns
from bstar.wire import native
from bstar.wire.messages import ErrorCode, Reason
from bstar_broker.core import Dispatch, Notice, Send
from support.house import ID, House, command


@pytest.fixture
def house() -> House:
    return House()


def test_a_client_calls_what_its_entry_lists(house: House) -> None:
    house.offer("worker")
    (dispatched,) = house.call("shop")
    assert command(dispatched)[:2] == (b"worker", native.REQUEST)
    assert house.call("shop", b"eu.tax", id_=ID[::-1]) == [], "it waits for a worker"


@pytest.mark.parametrize("user", ["worker", "ops", "nobody", ""])
def test_nobody_else_does_and_hears_why(house: House, user: str) -> None:
    house.offer("worker")
    (answer,) = house.call(user)
    assert command(answer) == (b"client", native.ERROR, ErrorCode.NOT_ALLOWED)
    assert not house.node.broker.ledger.by_identity


def test_a_refusal_names_both(house: House) -> None:
    (answer,) = house.call("shop", b"secret")
    text = native.decode(answer[1:]).body[0].decode()
    assert '"secret"' in text
    assert "shop" in text
    assert house.drops == {"call-not-allowed": 1}
    house.call("shop", b"secret")
    assert len(house.notices) == 1, "the log has it once"


def test_the_log_names_each_principal_that_is_refused_once(house: House) -> None:
    for user in ("shop", "worker", "shop", "worker"):
        house.call(user, b"secret", client=user.encode())
    first, second = house.notices
    assert ("shop may not call" in first, "worker may not call" in second) == (True, True)
    assert house.drops == {"call-not-allowed": 4}


def test_a_plain_client_hears_nothing_and_is_counted(house: House) -> None:
    house.offer("worker", b"price")
    assert house.hear("ops", b"c1", [b"", b"MDPC01", b"price", b"x"]) == []
    assert house.hear("ops", b"c2", [b"MDPC02", b"\x01", b"price", b"x"]) == []
    assert house.drops == {"call-not-allowed": 2}


@pytest.mark.parametrize("user", ["shop", "both"])
def test_each_request_of_a_batch_is_refused(house: House, user: str) -> None:
    house.offer("worker")
    batch = native.encode_requests(ID[:16], b"secret", [1, 2], [0, 0], [b"a", b"b"])
    assert [command(answer)[1:] for answer in house.hear(user, b"client", batch)] == [
        (native.ERROR, ErrorCode.NOT_ALLOWED)
    ] * 2


def test_a_worker_offers_what_its_entry_lists(house: House) -> None:
    house.principals["worker KEY"] = house.principals["worker"]
    (answer,) = house.offer("worker KEY", b"bank")
    (notice,) = house.notices
    assert "no pattern of its offers matches (key KEY, from 10.0.0.9)" in notice
    assert command(answer) == (b"worker", native.DISCONNECT, Reason.NOT_ALLOWED)
    assert not house.node.broker.ledger.workers
    (welcome,) = house.offer("worker KEY", b"price")
    assert command(welcome)[1] == native.WELCOME


@pytest.mark.parametrize("user", ["shop", "ops", "nobody"])
def test_nobody_else_is_a_worker(house: House, user: str) -> None:
    house.offer(user)
    assert not house.node.broker.ledger.workers
    house.hear(user, b"plain", [b"", b"MDPW01", b"\x01", b"price"])
    house.hear(user, b"plain2", [b"MDPW02", b"\x01", b"price"])
    assert not house.node.broker.ledger.workers


def test_an_epoch_is_believed_of_workers_alone(house: House) -> None:
    seen = house.node.machine.epochs.seen
    for user in ("shop", "ops", "nobody"):
        house.offer(user, epoch=seen + 5)
        house.hear(user, b"liar", native.encode_heartbeat(seen + 5))
    assert house.node.machine.epochs.seen == seen
    house.offer("worker", epoch=seen + 5)
    assert house.node.machine.epochs.seen == seen + 5


def test_the_log_has_who_named_a_far_epoch(house: House) -> None:
    house.principals["worker KEY"] = house.principals["worker"]
    house.offer("worker KEY", epoch=2**30)
    (text,) = house.notices
    assert f'worker (key KEY, from 10.0.0.9) of service "price" names epoch {2**30}' in text


def test_what_only_workers_say_is_dropped_from_clients(house: House) -> None:
    said = [
        native.encode_heartbeat(0),
        native.encode_final(ID, 0, 0, [b"x"]),
        native.encode_partial(ID, 0, 0, [b"x"]),
        native.encode_stale_epoch(ID, 99),
    ]
    for frames in said:
        house.hear("shop", b"client", frames)
    assert house.drops == {"no-worker": len(said)}


def test_a_stolen_routing_id_of_a_worker_answers_nothing(house: House) -> None:
    """libzmq gives a routing id to the connection that claims it last (ROUTER_HANDOVER)."""
    house.offer("worker", worker=b"w1")
    house.call("shop")
    house.offer("second", worker=b"w2")
    final = native.encode_final(ID, house.node.machine.epoch, 0, [b"forged"])
    outputs = house.hear("second", b"w1", final)
    assert b"forged" not in b"".join(frame for frames in outputs for frame in frames)
    assert command(outputs[0])[:2] == (b"w2", native.REQUEST), "another worker gets the request"
    assert house.drops["routing-id-taken"] == 1


def test_a_stolen_routing_id_of_a_client_gets_no_reply(house: House) -> None:
    house.offer("worker")
    house.call("shop", client=b"c1")
    house.hear("bank", b"c1", native.encode_ping(ID[:16]))
    final = native.encode_final(ID, house.node.machine.epoch, 0, [b"secret answer"])
    assert all(frames[0] != b"c1" for frames in house.hear("worker", b"worker", final))


def test_a_stolen_routing_id_gets_nothing_that_waited(house: House) -> None:
    house.call("shop", client=b"c1")
    house.hear("bank", b"c1", native.encode_ping(ID[:16]))
    house.offer("worker")
    final = native.encode_final(ID, house.node.machine.epoch, 0, [b"secret answer"])
    assert all(frames[0] != b"c1" for frames in house.hear("worker", b"worker", final))


def test_a_plain_worker_answers_a_request_whose_client_lost_its_routing_id(house: House) -> None:
    """It ignores a request without a client address, and would hold it for ever."""
    house.call("shop", client=b"c1")
    house.hear("bank", b"c1", native.encode_ping(ID[:16]))
    [request] = house.hear("worker", b"worker", [b"MDPW02", b"\x01", b"price"])
    address = request[3]
    assert address not in (b"", b"c1")
    house.hear("worker", b"worker", [b"MDPW02", b"\x04", address, b"", b"answer"])
    assert all(worker.held == 0 for worker in house.node.broker.ledger.workers.values())


@pytest.mark.parametrize("identity", [ID, native.keyed_identity(b"price", b"key")], ids=["own", "key"])
def test_a_stolen_routing_id_gets_nothing_that_was_sent_again_from_it(house: House, identity: bytes) -> None:
    """The request waits where its first address put it."""
    house.call("shop", client=b"c1", id_=identity)
    house.call("shop", client=b"c2", id_=identity)
    house.hear("bank", b"c2", native.encode_ping(ID[:16]))
    house.offer("worker")
    final = native.encode_final(identity, house.node.machine.epoch, 0, [b"secret answer"])
    assert all(frames[0] != b"c2" for frames in house.hear("worker", b"worker", final))


def test_a_batch_of_a_stolen_routing_id_is_counted_to_its_end(house: House) -> None:
    ready = native.encode_ready(b"price", credit=4, takes_batches=True)
    house.hear("worker", b"worker", ready)
    batch = native.encode_requests(ID[:16], b"price", [1, 2], [0, 0], [b"x", b"y"])
    (given,) = house.hear("shop", b"c1", batch)
    assert given[0] == b"worker"
    house.hear("bank", b"c1", native.encode_ping(ID[:16]))
    ledger = house.node.broker.ledger
    assert ledger.requests_of == {b"c1": 2}
    finals = native.encode_finals(ID[:16], house.node.machine.epoch, [1, 2], [b"secret", b"secret"])
    assert all(frames[0] != b"c1" for frames in house.hear("worker", b"worker", finals))
    assert not ledger.requests_of
    assert not ledger.by_identity


def test_a_key_that_leaves_the_list_is_refused_at_once(house: House) -> None:
    house.offer("worker")
    del house.principals["shop"]
    (answer,) = house.call("shop")
    assert command(answer)[1:] == (native.ERROR, ErrorCode.NOT_ALLOWED)
    del house.principals["worker"]
    house.hear("worker", b"worker", native.encode_heartbeat(0))
    assert not house.node.broker.ledger.workers, "it is sent away with its next heartbeat"


def test_a_worker_that_is_silent_is_sent_away_when_the_list_changes(house: House) -> None:
    house.offer("worker")
    house.offer("second", worker=b"w2")
    del house.principals["worker"]
    outputs = house.node.principals_changed(house.now)
    (told,) = [output.frames for output in outputs if isinstance(output, Send)]
    assert command(told) == (b"worker", native.DISCONNECT, Reason.NOT_ALLOWED)
    (dispatched,) = house.call("shop")
    assert dispatched[0] == b"w2"


def test_the_log_names_each_worker_that_a_new_list_sends_away(house: House) -> None:
    house.principals |= {f"w{number} KEY{number}": house.principals["worker"] for number in range(7)}
    for number in range(7):
        house.offer(f"w{number} KEY{number}", worker=b"w%d" % number)
    for number in range(1, 7):
        del house.principals[f"w{number} KEY{number}"]
    house.principals["w0 KEY0"] = Principal("w0", (), offers=Patterns(["stock"]))
    notices = [each.text for each in house.node.principals_changed(house.now) if isinstance(each, Notice)]
    (text,) = notices
    for said in (
        'sent away: the worker of service "price": w0 may not offer service "price"',
        "(key KEY0, from 10.0.0.9)",
        'the worker of service "price": w1 is not in the list of principals with its key KEY1 any more; ',
        "it asks from 10.0.0.9",
        "; 2 more",
    ):
        assert said in text
    assert house.drops == {"offer-not-allowed": 1, "key-not-listed": 6}


def test_what_a_worker_held_that_is_sent_away_goes_to_no_other_of_the_same_key(house: House) -> None:
    house.offer("worker", worker=b"w1")
    house.call("shop")
    house.offer("worker", worker=b"w2")
    del house.principals["worker"]
    outputs = house.node.principals_changed(house.now)
    sent = [command(output.frames)[:2] for output in outputs if isinstance(output, Send | Dispatch)]
    assert sent == [(b"w1", native.DISCONNECT), (b"w2", native.DISCONNECT)]


def test_a_worker_that_may_not_offer_any_more_is_sent_away(house: House) -> None:
    house.offer("worker")
    house.principals["worker"] = Principal("worker", (), offers=Patterns(["other"]))
    (answer,) = house.hear("worker", b"worker", native.encode_heartbeat(0))
    assert command(answer) == (b"worker", native.DISCONNECT, Reason.NOT_ALLOWED)
    assert not house.node.broker.ledger.workers


def test_management_services_are_for_operators_and_clients(house: House) -> None:
    def asked(user: str, service: bytes) -> int:
        (answer,) = house.call(user, service)
        return command(answer)[1]

    assert asked("ops", b"mmi.state") == native.FINAL
    assert asked("shop", b"mmi.service") == native.FINAL
    assert asked("shop", b"mmi.descriptions") == native.FINAL
    assert asked("worker", b"mmi.descriptions") == native.ERROR
    assert asked("shop", b"mmi.state") == native.ERROR
    assert asked("worker", b"mmi.service") == native.ERROR


def test_a_principal_with_a_rate_is_told_to_wait(house: House) -> None:
    house.offer("worker")
    house.principals["shop"] = Principal("shop", (), calls=Patterns(["*"]), quota=Quota(requests_per_s=2))
    asked = [house.call("shop", client=b"c%d" % number, id_=b"%024d" % number) for number in range(3)]
    assert [command(answers[0])[1] for answers in (asked[0], asked[2])] == [native.REQUEST, native.BUSY]
    assert command(asked[2][0])[2] >= 1, "and when it may try again"
    house.now = 0.6
    assert house.call("bank", client=b"other") == [], "others are not held up: it is queued"
    house.call("shop", id_=b"%024d" % 9)
    assert house.drops == {"rate-limited": 1}


def test_a_batch_counts_its_requests(house: House) -> None:
    house.principals["shop"] = Principal("shop", (), calls=Patterns(["*"]), quota=Quota(requests_per_s=10))
    batch = native.encode_requests(ID[:16], b"price", list(range(50)), [0] * 50, [b"a"] * 50)
    assert house.hear("shop", b"client", batch) == [], "the bucket was full: it is taken, and leaves a debt"
    house.now = 3.9
    assert [command(answer)[1] for answer in house.call("shop")] == [native.BUSY]
    house.now = 4.2
    assert house.call("shop") == []


def test_owners_are_remembered_in_bounded_room(house: House) -> None:
    authority = house.node.authority
    assert authority is not None
    for number in range(450_000):
        authority.is_new_owner(b"%d" % number, "shop", 0.0)
    assert len(authority._owners) + len(authority._older_owners) <= 400_000
    assert authority.is_new_owner(b"300000", "bank", 0.0), "the last 200,000 are remembered"


@pytest.mark.parametrize("user", ["shop", "ops"])
def test_clients_and_operators_may_ask_the_store(house: House, user: str) -> None:
    house.call(user, b"store.status")
    house.call(user, b"store.status", client=b"other")
    assert "call-not-allowed" not in house.drops


@pytest.mark.parametrize("user", ["worker", "nobody"])
def test_who_calls_nothing_does_not_ask_the_store(house: House, user: str) -> None:
    (answer,) = house.call(user, b"store.status")
    assert command(answer) == (b"client", native.ERROR, ErrorCode.NOT_ALLOWED)


def test_an_owner_is_remembered_for_one_generation_after_its_last_message(house: House) -> None:
    authority = house.node.authority
    assert authority is not None
    authority.is_new_owner(b"c1", "shop", 0.0)
    authority.is_new_owner(b"c2", "shop", 0.0)
    assert authority.is_new_owner(b"c1", "bank", 3_600.0), "its id was another's a generation ago"
    assert authority.is_new_owner(b"c1", "shop", 7_200.0), "and is the other's since"
    assert not authority.is_new_owner(b"c2", "bank", 7_200.0), "it was silent for two generations"


def test_the_owner_of_what_is_still_here_is_not_forgotten(house: House) -> None:
    """The request waits for days; whoever gets its routing id then must not get its reply."""
    authority = house.node.authority
    assert authority is not None
    assert house.call("shop", client=b"waits") == []
    for hour in range(1, 50):
        authority.is_new_owner(b"other %d" % hour, "shop", house.now + 3_600.0 * hour)
    assert authority.is_new_owner(b"waits", "bank", house.now + 180_000.0)


def test_owners_that_hold_nothing_are_forgotten_by_time(house: House) -> None:
    authority = house.node.authority
    assert authority is not None
    for second in range(0, 86_400, 10):
        authority.is_new_owner(b"%d" % second, "shop", float(second))
    assert len(authority._owners) + len(authority._older_owners) <= 720
