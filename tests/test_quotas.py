"""The bounds of a principal's entry, over all its connections, and how each is kept and given back."""

from __future__ import annotations

import pytest

from bstar.security import Principal, Quota
from bstar.security.principals import Patterns
from bstar.wire import native
from bstar.wire.messages import Reason
from support.house import ID, House, command

ALL = Patterns(["*"])


def shop(**bounds: float) -> Principal:
    return Principal("shop", (), calls=ALL, quota=Quota(**bounds))  # type: ignore[arg-type]


def numbered(number: int) -> bytes:
    return b"%024d" % number


def batch(count: int, first: int = 0) -> list[bytes]:
    numbers = list(range(first, first + count))
    return native.encode_requests(ID[:16], b"price", numbers, [0] * count, [b"abcd"] * count)


@pytest.fixture
def house() -> House:
    return House()


def bound(house: House, **bounds: float) -> None:
    house.principals["shop"] = shop(**bounds)


def held(house: House) -> int:
    authority = house.node.authority
    assert authority is not None
    return authority.quotas.of(house.principals["shop"], house.now).held


# --- outstanding --------------------------------------------------------------------------------------------


def test_requests_beyond_those_outstanding_are_busy_over_all_connections(house: House) -> None:
    bound(house, outstanding=2)
    assert house.call("shop", client=b"c1", id_=numbered(1)) == []
    assert house.call("shop", client=b"c2", id_=numbered(2)) == []
    (answer,) = house.call("shop", client=b"c3", id_=numbered(3))
    assert command(answer)[:2] == (b"c3", native.BUSY)
    assert house.drops == {"outstanding": 1}
    assert house.call("bank", client=b"c4", id_=numbered(4)) == [], "others have their own"


def test_a_plain_client_beyond_it_hears_nothing(house: House) -> None:
    bound(house, outstanding=1)
    house.hear("shop", b"c1", [b"MDPC02", b"\x01", b"price", b"x"])
    assert house.hear("shop", b"c1", [b"MDPC02", b"\x01", b"price", b"x"]) == []
    assert house.drops == {"outstanding": 1}


def test_a_request_that_is_sent_again_is_joined_and_not_counted_again(house: House) -> None:
    """The client comes back with another routing id; the worker's answer must reach it."""
    bound(house, outstanding=1, requests_per_s=1.0)
    house.offer("worker")
    house.call("shop", client=b"c1", id_=numbered(1))
    assert house.call("shop", client=b"c2", id_=numbered(1)) == []
    assert held(house) == 1
    final = native.encode_final(numbered(1), house.node.machine.epoch, 0, [b"y"])
    assert b"c2" in [frames[0] for frames in house.hear("worker", b"worker", final)]


def test_a_batch_that_is_sent_again_is_joined(house: House) -> None:
    bound(house, outstanding=2)
    assert house.hear("shop", b"c1", batch(2)) == []
    assert house.hear("shop", b"c2", batch(2)) == []
    assert not house.drops


def test_one_large_body_makes_an_entry_wait_for_a_minute_at_most(house: House) -> None:
    bound(house, bytes_per_s=0.001)
    house.call("shop", id_=numbered(1))
    (answer,) = house.call("shop", id_=numbered(2))
    assert command(answer)[:2] == (b"client", native.BUSY)
    house.tick(61.0)
    assert house.call("shop", id_=numbered(3)) == []


def test_an_answer_makes_room(house: House) -> None:
    bound(house, outstanding=1)
    house.offer("worker")
    house.call("shop", id_=numbered(1))
    assert held(house) == 1
    house.hear("worker", b"worker", native.encode_final(numbered(1), house.node.machine.epoch, 0, [b"y"]))
    assert held(house) == 0
    (dispatched,) = house.call("shop", id_=numbered(2))
    assert command(dispatched)[:2] == (b"worker", native.REQUEST)


def test_a_request_that_expires_makes_room(house: House) -> None:
    bound(house, outstanding=1)
    request = native.encode_request(ID, b"price", [b"x"], ttl_ms=1_000, epoch=0, is_repeated=False)
    house.hear("shop", b"c1", request)
    assert held(house) == 1
    house.tick(5.0)
    assert held(house) == 0


def test_a_client_that_is_gone_makes_room(house: House) -> None:
    bound(house, outstanding=1)
    house.call("shop", client=b"c1")
    house.node.unreachable(b"c1", house.now)
    assert (held(house), house.drops["client-gone"]) == (0, 1)


def test_a_node_that_serves_no_more_gives_all_back(house: House) -> None:
    bound(house, outstanding=3)
    house.call("shop", client=b"c1", id_=numbered(1))
    house.hear("shop", b"c2", batch(2))
    assert held(house) == 3
    house.node.broker.deactivate(house.now)
    assert held(house) == 0


def test_a_batch_that_is_answered_makes_room(house: House) -> None:
    bound(house, outstanding=10)
    ready = native.encode_ready(b"price", credit=100, epoch=0, takes_batches=True)
    house.hear("worker", b"worker", ready)
    (dispatched,) = house.hear("shop", b"client", batch(10))
    assert held(house) == 10
    assert command(dispatched)[1] == native.REQUESTS
    finals = native.encode_finals(ID[:16], house.node.machine.epoch, list(range(10)), [b"y"] * 10)
    house.hear("worker", b"worker", finals)
    assert held(house) == 0


def test_of_a_batch_that_is_too_large_as_many_are_taken_as_fit(house: House) -> None:
    bound(house, outstanding=3)
    answers = house.hear("shop", b"client", batch(5))
    assert [command(answer)[1] for answer in answers] == [native.BUSY] * 2
    assert held(house) == 3
    answers = house.hear("shop", b"client", batch(5, first=10))
    assert [command(answer)[1] for answer in answers] == [native.BUSY] * 5


def test_requests_of_a_routing_id_that_another_owns_count_for_nobody(house: House) -> None:
    bound(house, outstanding=1)
    house.call("shop", client=b"c1")
    house.call("bank", client=b"c1", id_=numbered(2))
    assert held(house) == 0
    house.offer("worker")
    house.hear("worker", b"worker", native.encode_final(ID, house.node.machine.epoch, 0, [b"y"]))
    assert held(house) == 0, "its end is not counted twice"


def test_a_bound_that_comes_later_counts_what_its_connections_have(house: House) -> None:
    house.call("shop", client=b"c1", id_=numbered(1))
    bound(house, outstanding=1)
    (answer,) = house.call("shop", client=b"c1", id_=numbered(2))
    assert command(answer)[1] == native.BUSY


def test_accounts_of_clients_without_requests_are_forgotten(house: House) -> None:
    bound(house, outstanding=1)
    for number in range(50):
        house.call("shop", client=b"c%d" % number, id_=numbered(number))
    assert len(house.node.broker.ledger.accounts) == 50
    house.tick(2.0)
    assert list(house.node.broker.ledger.accounts) == [b"c0"]


# --- rates --------------------------------------------------------------------------------------------------


def test_octets_are_bounded(house: House) -> None:
    bound(house, bytes_per_s=100)
    big = native.encode_request(ID, b"price", [b"x" * 150], ttl_ms=0, epoch=0, is_repeated=False)
    assert house.hear("shop", b"c1", big) == [], "the bucket was full: it is taken, and leaves a debt"
    (answer,) = house.call("shop", id_=numbered(1))
    assert command(answer)[1:] == (native.BUSY, 500)
    house.now = 0.6
    assert house.call("shop", id_=numbered(1)) == []


def test_a_request_that_one_bound_refuses_costs_nothing_of_the_other(house: House) -> None:
    bound(house, requests_per_s=1, bytes_per_s=1)
    house.call("shop", id_=numbered(1))
    for _ in range(20):
        house.call("shop", id_=numbered(2))
    house.now = 1.1
    assert house.call("shop", id_=numbered(2)) == []


# --- connections and messages -------------------------------------------------------------------------------


def test_one_connection_too_many_is_ended_and_no_other_one(house: House) -> None:
    bound(house, connections=2)
    for number in (1, 2, 3):
        house.origin.number = number
        house.hear("shop", b"c%d" % number, native.encode_ping(ID[:16]))
    assert house.hang_ups == [3]
    assert house.drops == {"too-many-connections": 1}
    house.hear("shop", b"c3", native.encode_ping(ID[:16]))
    assert house.hang_ups == [3], "what it had sent before is dropped"
    assert house.drops["connection-ending"] == 1


def test_a_principal_connects_again_when_one_of_its_connections_has_ended(house: House) -> None:
    bound(house, connections=1)
    house.origin.number = 1
    house.hear("shop", b"c1", native.encode_ping(ID[:16]))
    assert house.why_not("shop") == "too-many-connections"
    house.quotas.ended(1)
    assert house.why_not("shop") == ""
    house.origin.number = 2
    house.hear("shop", b"c2", native.encode_ping(ID[:16]))
    assert not house.hang_ups


def test_messages_of_a_connection_that_has_ended_do_not_count_as_one(house: House) -> None:
    bound(house, connections=1)
    house.origin.number = 0
    for number in range(5):
        house.hear("shop", b"c%d" % number, native.encode_ping(ID[:16]))
    assert house.why_not("shop") == ""
    assert not house.hang_ups


@pytest.mark.parametrize(
    "frames",
    [native.encode_ping(ID[:16]), [b"garbage"], native.encode_heartbeat(0)],
    ids=["ping", "bad", "hb"],
)
def test_who_sends_too_many_messages_of_any_kind_is_hung_up_on(house: House, frames: list[bytes]) -> None:
    bound(house, messages_per_s=10)
    house.origin.number = 7
    for _ in range(15):
        house.hear("shop", b"c1", frames)
    assert house.hang_ups == [7], "once"
    assert house.drops["too-many-messages"] == 1
    assert house.drops["connection-ending"] == 4


def test_who_sent_too_many_messages_stays_out_for_half_a_second(house: House) -> None:
    bound(house, messages_per_s=10)
    house.origin.number = 7
    assert house.why_not("shop") == ""
    for _ in range(11):
        house.hear("shop", b"c1", native.encode_ping(ID[:16]))
    house.quotas.ended(7)
    house.now = 0.4
    assert house.why_not("shop") == "too-many-messages"
    house.now = 0.6
    assert house.why_not("shop") == ""
    house.origin.number = 8
    house.hear("shop", b"c2", native.encode_ping(ID[:16]))
    assert house.hang_ups == [7]


def test_a_worker_beyond_a_bound_is_not_told_that_it_may_not_offer(house: House) -> None:
    house.principals["worker"] = Principal("worker", (), offers=ALL, quota=Quota(messages_per_s=1))
    house.origin.number = 1
    (welcome,) = house.offer("worker")
    assert command(welcome)[1] == native.WELCOME
    answers = house.hear("worker", b"worker", native.encode_heartbeat(0))
    assert (answers, house.hang_ups) == ([], [1])
    assert Reason.NOT_ALLOWED not in [command(answer)[2] for answer in answers]


def test_whose_key_left_the_list_is_hung_up_on_if_it_goes_on(house: House) -> None:
    house.origin.number = 4
    for number in range(200):
        house.call("nobody Z85KEY", id_=numbered(number))
    assert house.hang_ups == [4]
    assert house.drops["key-not-listed"] == 100
    (text,) = [text for text in house.notices if "key-not-listed" in text]
    assert "nobody" in text
    assert "Z85KEY" in text
    assert "10.0.0.9" in text


# --- a list that changes ------------------------------------------------------------------------------------


def test_an_entry_with_another_rate_holds_from_the_next_request_on(house: House) -> None:
    bound(house, requests_per_s=1)
    assert house.call("shop", id_=numbered(1)) == []
    (answer,) = house.call("shop", id_=numbered(2))
    assert command(answer)[1] == native.BUSY
    bound(house, requests_per_s=100)
    assert house.call("shop", id_=numbered(2)) == []
    bound(house)
    for number in range(3, 300):
        assert house.call("shop", id_=numbered(number)) == [], "its entry has no bound any more"


def test_an_entry_that_is_read_again_unchanged_gives_no_new_tokens(house: House) -> None:
    bound(house, requests_per_s=1)
    assert house.call("shop", id_=numbered(1)) == []
    bound(house, requests_per_s=1)
    (answer,) = house.call("shop", id_=numbered(2))
    assert command(answer)[1] == native.BUSY


def test_what_is_outstanding_counts_on_when_the_entry_changes(house: House) -> None:
    bound(house, outstanding=1)
    assert house.call("shop", client=b"c1", id_=numbered(1)) == []
    bound(house, outstanding=1, requests_per_s=100)
    (answer,) = house.call("shop", client=b"c2", id_=numbered(2))
    assert command(answer)[:2] == (b"c2", native.BUSY)
