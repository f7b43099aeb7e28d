"""Orders from elsewhere, without a socket: who may give them, for which node and epoch, and how often."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bstar.errors import ConfigurationError
from bstar.security import Principal
from bstar.security.principals import principal_of
from bstar.settings import load
from bstar.settings.sample import sample_settings
from bstar.star import EpochHeard
from bstar.wire import mmi, native
from bstar.wire.messages import ErrorCode
from bstar_broker.core import BrokerSettings, Node, Send
from bstar_broker.core.outputs import OrderReceived
from bstar_broker.journal import NodeJournal
from bstar_broker.operate import network_orders
from bstar_broker.operate.network_orders import NetworkOrders, Sent, Stamp
from bstar_broker.operate.orders import ORDERS, Operator, Order
from support.house import House

ID = bytes(range(24))
PAUSE = {"for_s": 60.0, "why": "mia@laptop: new switch"}
REFUSED = native.ERROR


class Desk(House):
    """The house's node takes orders from elsewhere, from "chief" alone."""

    def __init__(self, *, is_on: bool = True) -> None:
        super().__init__()
        self.principals["chief"] = Principal("chief", (), may_order=True)
        self.journal = Mock(spec=NodeJournal)
        ledger = self.node.broker.ledger
        ledger.observer, ledger.address = self.journal, self.origin.address
        operator = Operator(self.node, lambda outputs: None, lambda: self.now, lambda is_trial: None)
        sample = sample_settings("primary")
        security = msgspec.structs.replace(sample.security, orders=is_on)
        self.orders = NetworkOrders(operator, msgspec.structs.replace(sample, security=security))

    @property
    def run(self) -> str:
        return self.node.machine.node

    @property
    def epoch(self) -> int:
        return self.node.machine.epochs.seen

    def is_paused(self) -> bool:
        return self.node.machine.pause.is_on(self.now)

    @property
    def given(self) -> list[SimpleNamespace]:
        """What the journal has."""
        return [SimpleNamespace(**call.kwargs) for call in self.journal.order_given.call_args_list]

    def say(self, user: str, body: bytes, id_: bytes = ID) -> tuple[int, int, list[bytes]]:
        """Command, value and body of the answer to one REQUEST."""
        request = native.encode_request(id_, mmi.ORDER, [body])
        [[_, *frames]] = self.carry_out([b"far", *request], user)
        answer = native.decode(frames)
        return answer.command, answer.value, answer.body

    def carry_out(self, frames: list[bytes], user: str) -> list[list[bytes]]:
        """What the node sends because of this message, as the server does it."""
        sent = []
        for output in self.node.receive_frames(frames, self.now, user):
            followed = self.orders.receive(output) if isinstance(output, OrderReceived) else [output]
            sent += [each.frames for each in followed if isinstance(each, Send)]
        return sent

    def order(
        self, user: str, word: str = "pause", id_: bytes = ID, *, epoch: int | None = None, run: str = ""
    ) -> tuple[int, int, str]:
        """Command and value of the answer to an order, and its text: of a refusal, of what was done."""
        arguments = msgspec.Raw(msgspec.json.encode(PAUSE if word == "pause" else {}))
        sent = Sent(word, run or self.run, self.epoch if epoch is None else epoch, arguments)
        command, value, body = self.say(user, msgspec.json.encode(sent), id_)
        return command, value, body[-1].decode()


@pytest.mark.requirement("BSN-B-33")
def test_a_key_that_may_gets_a_stamp_and_its_order_is_carried_out_with_its_name() -> None:
    desk = Desk()
    command, _, body = desk.say("chief", msgspec.json.encode(Sent("pause")))
    assert (command, body[0]) == (native.FINAL, mmi.OK)
    stamp = msgspec.json.decode(body[1], type=Stamp)
    assert (stamp.node, stamp.epoch) == (desk.run, desk.epoch)
    assert stamp.wait_s is not None
    assert not desk.is_paused(), "a stamp changes nothing"
    assert desk.given == []
    command, _, text = desk.order("chief")
    assert command == native.FINAL
    assert "are paused until" in text
    assert desk.is_paused()
    assert desk.node.machine.pause.why == "chief: mia@laptop: new switch"
    [given] = desk.given
    assert (given.principal, given.order, given.reason) == ("chief", "pause", "")
    assert (given.address, given.epoch, given.id) == ("10.0.0.9", desk.epoch, ID.hex())
    assert "new switch" in given.arguments


@pytest.mark.parametrize("user", ["ops", "shop", "worker", "both"])
def test_no_other_role_gives_orders_and_the_journal_has_who_tried(user: str) -> None:
    desk = Desk()
    before = desk.epoch
    command, code, text = desk.order(user)
    assert (command, code) == (REFUSED, ErrorCode.NOT_ALLOWED)
    assert text == f"{user} may give no orders: its entry lacks orders: true"
    assert desk.say(user, msgspec.json.encode(Sent("pause")))[:2] == (REFUSED, ErrorCode.NOT_ALLOWED)
    assert not desk.is_paused()
    assert desk.epoch == before
    assert [(each.principal, each.order, each.reason) for each in desk.given] == [
        (user, "pause", "order-not-allowed")
    ] * 2
    assert desk.drops["order-not-allowed"] == 2


def test_a_key_that_leaves_the_list_gives_no_more_orders() -> None:
    desk = Desk()
    assert desk.order("chief", "resume")[0] == native.FINAL
    del desk.principals["chief"]
    assert desk.order("chief", id_=bytes(23) + b"2")[:2] == (REFUSED, ErrorCode.NOT_ALLOWED)
    assert not desk.is_paused()


def test_a_node_that_is_not_switched_on_takes_none() -> None:
    desk = Desk(is_on=False)
    command, code, text = desk.order("chief")
    assert (command, code) == (REFUSED, ErrorCode.NOT_ALLOWED)
    assert "security.orders" in text
    assert not desk.is_paused()
    assert desk.given[0].reason == "order-not-allowed"


@pytest.mark.requirement("BSN-B-33")
def test_an_order_that_comes_twice_is_carried_out_once() -> None:
    desk = Desk()
    desk.order("chief")
    number = desk.node.machine.pause.number
    command, code, text = desk.order("chief")
    assert (command, code) == (REFUSED, ErrorCode.WORKER_LOST), "it may have been executed: it was"
    assert "came before" in text
    assert desk.node.machine.pause.number == number
    assert [each.reason for each in desk.given] == ["", "order-repeated"]
    assert desk.order("chief", id_=bytes(23) + b"2")[0] == native.FINAL
    assert desk.node.machine.pause.number > number, "another order is another one"


def test_an_order_that_was_refused_is_not_carried_out_by_its_repetition() -> None:
    desk = Desk()
    command, _, text = desk.order("chief", "resume")
    assert command == native.FINAL
    assert "takeovers are not paused" in text
    assert desk.given[0].reason == "refused"
    desk.order("chief", id_=bytes(23) + b"2")
    assert desk.order("chief", "resume")[1] == ErrorCode.WORKER_LOST
    assert desk.is_paused()


@pytest.mark.requirement("BSN-B-33")
def test_an_order_for_another_epoch_is_refused() -> None:
    desk = Desk()
    meant = desk.epoch
    desk.node.step(EpochHeard(meant + 4), desk.now)
    assert desk.epoch > meant
    command, code, text = desk.order("chief", epoch=meant)
    assert (command, code) == (REFUSED, ErrorCode.INVALID)
    assert text == f"the order is for epoch {meant}, and the pair is in epoch {desk.epoch}"
    assert desk.order("chief", epoch=desk.epoch + 2)[1] == ErrorCode.INVALID
    assert not desk.is_paused()
    assert [each.reason for each in desk.given] == ["order-stale"] * 2
    assert desk.order("chief")[0] == native.FINAL, "a refused order may be given again, for this epoch"


def test_an_order_for_another_node_or_an_earlier_run_is_refused() -> None:
    desk = Desk()
    command, code, text = desk.order("chief", run="they")
    assert (command, code) == (REFUSED, ErrorCode.INVALID)
    assert "for another node" in text
    assert not desk.is_paused()


@pytest.mark.requirement("BSN-B-33")
def test_how_far_an_order_is_may_be_asked_in_a_later_epoch_and_often() -> None:
    desk = Desk()
    meant = desk.epoch
    desk.order("chief")
    desk.node.step(EpochHeard(meant + 4), desk.now)
    for _ in range(2):
        assert desk.order("chief", "pause-progress", epoch=meant)[0] == native.FINAL
    assert desk.order("ops", "pause-progress")[1] == ErrorCode.NOT_ALLOWED
    assert len(desk.given) == 2, "looking is no order, trying is"


@pytest.mark.parametrize("word", ["promote", "promote-progress", "dance"])
def test_what_has_to_look_around_on_the_machine_is_never_given_from_elsewhere(word: str) -> None:
    desk = Desk()
    assert desk.order("chief", word)[:2] == (REFUSED, ErrorCode.INVALID)
    assert desk.given[0].reason == "order-invalid"


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[1]", b"\xff", b'{"word":7}', b"[" * 4_000, b'{"word":"pause","node":"' + b"x" * 5_000],
)
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    desk = Desk()
    assert desk.say("chief", body)[:2] == (REFUSED, ErrorCode.INVALID)
    assert desk.drops["order-invalid"] == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from([order for order in ORDERS if not order.is_local]), st.data())
@settings(max_examples=300, deadline=None)
def test_no_arguments_break_a_node(order: Order, data: st.DataObject) -> None:
    desk = Desk()
    desk.offer("worker")
    values = st.sampled_from(["price", "", "00" * 24, 0, 1e300, -1, True, None]) | JSON
    fields = {each.name: values for each in msgspec.structs.fields(order.request)}
    arguments = data.draw(st.fixed_dictionaries({}, optional=fields) | JSON)
    sent = Sent(order.word, desk.run, desk.epoch, msgspec.Raw(msgspec.json.encode(arguments)))
    assert desk.say("chief", msgspec.json.encode(sent))[0] in (native.FINAL, native.ERROR)
    assert len(desk.given) == 1


def test_arguments_that_are_no_utf8_are_refused() -> None:
    """They come in a part of the order that is read late."""
    desk = Desk()
    sent = msgspec.json.encode(Sent("pause", desk.run, desk.epoch, msgspec.Raw(b'{"why": "?"}')))
    command, _, body = desk.say("chief", sent.replace(b"?", b"\xff"))
    assert (command, "cannot be read" in body[-1].decode()) == (native.FINAL, True)
    assert not desk.is_paused()


def test_the_memory_of_orders_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_orders, "IDS_KEPT", 2)
    desk = Desk()
    ids = [bytes(23) + bytes([number]) for number in (1, 2, 3)]
    assert [desk.order("chief", id_=id_)[0] for id_ in ids] == [native.FINAL] * 3
    assert [desk.order("chief", id_=id_)[1] for id_ in ids[1:]] == [ErrorCode.WORKER_LOST] * 2
    assert desk.order("chief", id_=ids[0])[0] == native.FINAL


@pytest.mark.requirement("BSN-B-33")
def test_only_the_native_dialect_and_no_batch_brings_orders() -> None:
    desk = Desk()
    body = msgspec.json.encode(Sent("pause", desk.run, desk.epoch, msgspec.Raw(msgspec.json.encode(PAUSE))))
    [answer] = desk.carry_out([b"plain", b"MDPC02", b"\x01", mmi.ORDER, body], "chief")
    assert answer[-1] == mmi.NOT_IMPLEMENTED
    batch = native.encode_requests(bytes(15) + b"\x01", mmi.ORDER, [1], [0], [body])
    [answer] = desk.carry_out([b"far", *batch], "chief")
    assert native.decode(answer[1:]).body == [mmi.NOT_IMPLEMENTED]
    assert not desk.is_paused()


def test_a_node_without_keys_refuses_all_orders() -> None:
    plain = House()
    node = Node(
        plain.node.machine, BrokerSettings(), node_id=bytes(16), drain_timeout_s=5.0, version="test", now=0.0
    )
    request = native.encode_request(ID, mmi.ORDER, [msgspec.json.encode(Sent("pause"))])
    sent = [each for each in node.receive_frames([b"far", *request], 0.0) if isinstance(each, Send)]
    answer = native.decode(sent[0].frames[1:])
    assert (answer.command, answer.value) == (REFUSED, ErrorCode.NOT_ALLOWED)
    assert node.broker.ledger.drops["order-not-allowed"] == 1


def test_without_keys_orders_from_elsewhere_cannot_be_switched_on() -> None:
    with pytest.raises(ConfigurationError, match=r"security\.orders.*without security\.key"):
        load("configs/primary.yaml", options={"security.orders": "true"})


def test_an_entry_says_who_may_give_orders() -> None:
    chief = principal_of("chief", {"keys": ["0" * 40], "orders": True})
    assert chief.may_order
    assert chief.roles == ("orders",)
    assert not principal_of("ops", {"keys": ["0" * 40], "operator": True}).may_order
