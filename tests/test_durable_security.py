"""Who may do what with durable requests: with keys, each principal has its own."""

from __future__ import annotations

import pytest

from bstar.security.principals import Patterns, Principal
from bstar.wire import durable, native
from bstar.wire.dialect import Dialect
from bstar.wire.durable import Fetch, Filter, Listing, Service, Standing, State, Submit
from bstar.wire.messages import ErrorCode, Request
from bstar_broker.store.core.titanic import CLOSE, REPLY, REQUEST
from support.solo_store import SoloStore

ID = durable.new_id(1, b"0123456789")
SHOP = Principal("shop", ("k" * 40,), calls=Patterns(("invoice", "mail.*")))
RIVAL = Principal("rival", ("r" * 40,), calls=Patterns(("*",)))
OPERATOR = Principal("operator", ("o" * 40,), is_operator=True)


def ask(solo: SoloStore, who: Principal, service: bytes, *body: bytes) -> native.Message:
    """A native request of this principal, whose key was proved; the one answer."""
    solo.number = getattr(solo, "number", 0) + 1  # type: ignore[attr-defined]
    identity = native.identity(b"c" * 16, solo.number)  # type: ignore[attr-defined]
    request = Request(b"client", Dialect.NATIVE, (), service, list(body), identity)
    before = len(solo.sent)
    store = solo.node.store
    assert store is not None
    solo.carry_out(store.receive(request, who, solo.now))
    solo.carry_out(store.settle(solo.now))
    [answer] = [native.decode(frames[1:]) for frames in solo.sent[before:] if frames[0] == b"client"]
    return answer


def submit(
    solo: SoloStore, who: Principal, service: bytes = b"invoice", body: bytes = b"x"
) -> native.Message:
    frame = durable.encode(Submit(ID, service, [body]))
    return ask(solo, who, Service.SUBMIT.value, frame)


def state(solo: SoloStore, who: Principal, service: Service = Service.STATUS) -> State:
    body = durable.encode(Fetch(ID)) if service in (Service.STATUS, Service.RESULT) else ID
    return State(durable.decode(ask(solo, who, service.value, body).body[0], Standing).state)


@pytest.fixture
def solo() -> SoloStore:
    return SoloStore()


@pytest.mark.parametrize("service", [b"invoice", b"mail.daily"])
def test_a_client_submits_to_what_it_may_call(solo: SoloStore, service: bytes) -> None:
    assert submit(solo, SHOP, service).command == native.FINAL


@pytest.mark.parametrize("service", [b"payroll", b"mail", b"mmi.state", b"store.submit", b"titanic.close"])
def test_a_client_submits_to_nothing_else(solo: SoloStore, service: bytes) -> None:
    refused = submit(solo, SHOP, service)
    assert refused.command == native.ERROR
    assert refused.value in (ErrorCode.NOT_ALLOWED, ErrorCode.INVALID)
    assert solo.table.records == {}


def test_nor_by_way_of_titanic(solo: SoloStore) -> None:
    assert ask(solo, SHOP, REQUEST, b"payroll", b"x").body == [b"400"]
    assert ask(solo, SHOP, REQUEST, b"invoice", b"x").body[0] == b"200"


def test_a_request_is_its_owners_and_the_operators(solo: SoloStore) -> None:
    submit(solo, SHOP)
    assert state(solo, SHOP) == State.PENDING
    assert state(solo, OPERATOR) == State.PENDING
    assert state(solo, RIVAL) == State.UNKNOWN
    assert state(solo, RIVAL, Service.RESULT) == State.UNKNOWN


@pytest.mark.parametrize("service", [Service.CANCEL, Service.CLOSE])
def test_nobody_else_ends_it(solo: SoloStore, service: Service) -> None:
    submit(solo, SHOP)
    assert state(solo, RIVAL, service) == State.UNKNOWN
    assert state(solo, SHOP) == State.PENDING


def test_nobody_else_fetches_or_closes_it_as_titanics(solo: SoloStore) -> None:
    _, name = ask(solo, SHOP, REQUEST, b"invoice", b"x").body
    assert ask(solo, RIVAL, REPLY, name).body == [b"400"]
    ask(solo, RIVAL, CLOSE, name)
    assert ask(solo, SHOP, REPLY, name).body == [b"300"]


def test_nobody_else_makes_a_dead_letter_run_again(solo: SoloStore) -> None:
    submit(solo, SHOP)
    state(solo, SHOP, Service.CANCEL)
    assert state(solo, RIVAL, Service.RETRY) == State.UNKNOWN
    assert state(solo, SHOP) == State.CANCELLED
    assert state(solo, OPERATOR, Service.RETRY) == State.PENDING


def test_a_list_has_ones_own(solo: SoloStore) -> None:
    submit(solo, SHOP)
    for who, count in ((SHOP, 1), (RIVAL, 0), (OPERATOR, 1)):
        answer = ask(solo, who, Service.LIST.value, durable.encode(Filter()))
        assert len(durable.decode(answer.body[0], Listing).standings) == count, who.name


def test_a_key_that_another_principal_uses_is_taken(solo: SoloStore) -> None:
    """Ids of keys are no secret: who guesses one learns nothing and changes nothing."""
    assert submit(solo, SHOP).command == native.FINAL
    refused = submit(solo, RIVAL)
    assert (refused.command, refused.value) == (native.ERROR, ErrorCode.INVALID)
    assert state(solo, SHOP) == State.PENDING
