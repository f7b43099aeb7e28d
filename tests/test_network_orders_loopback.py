"""Orders from elsewhere at a real pair with keys: what an operator gives, and what others try."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import pytest
import zmq

from bstar import records
from bstar.security import Security, new_key
from bstar.security.keys import write_key
from bstar.wire import mmi, native
from bstar.wire.messages import ErrorCode
from bstar_broker.operate.network_orders import Sent, Stamp
from bstar_cli import exits
from bstar_cli import orders as order_commands
from bstar_cli.main import main
from bstar_testing import Pair, wait_until
from bstar_testing.nodes import Node

pytestmark = pytest.mark.loopback

REPLY_S = 60.0
# A busy machine costs no node its role, so the epoch stays; one that was killed is gone at once.
CALM = {
    "timing.failover_timeout_s": 20.0,
    "timing.failover_timeout_max_s": 20.0,
    "timing.worker_heartbeat_interval_s": 10.0,
    "timing.mdp_heartbeat_interval_s": 10.0,
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("far")
    settings = {**CALM, "security.orders": True}
    with Pair(folder, is_secure=True, settings=settings, journals=folder / "journals") as made:
        assert made.keys is not None
        made.keys.add("chief", "orders")
        write_key(new_key("stranger"), made.keys.folder)
        made.start()
        made.start_workers(1, "echo", service="price")
        yield made
        assert not made.odd_ends


@pytest.fixture
def elsewhere(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the operator's key and the public keys of the nodes, as another machine has them."""
    assert pair.keys is not None
    for name in ("chief.key", "primary.pub", "backup.pub"):
        shutil.copy(pair.keys.folder / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BSTAR_CONFIG", raising=False)
    monkeypatch.setenv("BSTAR_KEY", "chief.key")
    monkeypatch.setenv("BSTAR_SERVER_KEYS", "primary.pub,backup.pub")
    monkeypatch.setattr(order_commands, "_ANSWER_S", REPLY_S)
    return tmp_path


def orders(pair: Pair) -> list[records.OrderGiven]:
    """What the journals of both nodes have of orders."""
    found = []
    assert pair.journals is not None
    for path in pair.journals.iterdir():
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        whole = [line for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
        found += [each for each in map(records.decode, whole) if isinstance(each, records.OrderGiven)]
    return found


def await_order(pair: Pair, principal: str, order: str, reason: str) -> None:
    def is_there() -> bool:
        return any(
            (each.principal, each.order, each.reason) == (principal, order, reason) for each in orders(pair)
        )

    wait_until(is_there, f"the journal has {order} of {principal}: {reason or 'carried out'}")


def test_every_verb_works_from_a_folder_with_the_operators_key_alone(
    pair: Pair, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    active, passive = pair.active(), pair.passive()
    serves, stands_by = f"-e {active.endpoint}", f"-e {passive.endpoint}"

    def bstar(line: str, code: int = exits.OK) -> str:
        assert main(line.split()) == code, f"bstar {line}: {capsys.readouterr()}"
        return capsys.readouterr().out

    [worker] = [json.loads(row) for row in bstar(f"workers ls {serves} --json").splitlines()]
    assert worker["service"] == "price"
    assert "is drained" in bstar(f"workers drain {worker['worker']} {serves} --reason disk")
    assert "gets requests again" in bstar(f"workers resume {worker['worker']} {serves}")
    assert "are paused" in bstar(f"pause --for 10m --reason switch {serves}")
    assert "chief: " in passive.wait_for("knows", lambda state: state.pair.is_paused).pair.pause_why
    bstar(f"resume {stands_by}")
    bstar(f"service pause price {serves} --reason ill")
    bstar(f"service purge price {serves} --reason ill")
    bstar(f"service resume price {serves}")
    bstar(f"request ls {serves}")
    identity = "00" * 23 + "01"
    bstar(f"request show {identity} {serves}", exits.FAILED)
    bstar(f"request cancel {identity} {serves} --reason late", exits.FAILED)
    bstar(f"store force {serves} --give-up-the-other", exits.FAILED)
    assert "serves, epoch" in bstar(f"switchover {serves}")
    passive.wait_for_state("ACTIVE")
    bstar(f"switchover {serves}", exits.FAILED)
    assert "is drained" in bstar(f"drain {serves} --reason disk")
    bstar(f"drain --undo {serves}")
    bstar(f"promote {serves}", exits.USAGE)
    await_order(pair, "chief", "switchover", "")
    await_order(pair, "chief", "drain", "")
    pair.settled()


@pytest.mark.parametrize("name", ["client", "worker", "operator"])
def test_no_other_listed_key_gives_orders(
    pair: Pair, elsewhere: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert pair.keys is not None
    active = pair.active()
    words = ["switchover", "-e", active.endpoint, "--key-file", str(pair.keys.path(name))]
    assert main(words) == exits.FAILED
    assert f"{name} may give no orders: its entry lacks orders: true" in capsys.readouterr().err
    assert pair.active() is active
    await_order(pair, name, "switchover", "order-not-allowed")
    # A state may be that of a moment before.
    active.wait_for("counts it", lambda state: state.broker.drops.get("order-not-allowed"))


def test_a_key_that_is_not_listed_gets_no_connection(
    pair: Pair, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pair.keys is not None
    words = ["pause", "--for", "1m", "--reason", "x", "-e", pair.primary.endpoint]
    assert main([*words, "--key-file", str(pair.keys.path("stranger"))]) == exits.FAILED
    assert capsys.readouterr().err.startswith("refused: ")
    assert not pair.primary.state().pair.is_paused


def test_an_order_goes_to_one_node_and_needs_a_key(
    pair: Pair, elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["switchover", "-e", ",".join(pair.endpoints)]) == exits.USAGE
    assert "one node" in capsys.readouterr().err
    assert main(["switchover", "--epoch", "7"]) == exits.USAGE
    monkeypatch.delenv("BSTAR_KEY")
    monkeypatch.delenv("BSTAR_SERVER_KEYS")
    assert main(["switchover", "-e", pair.primary.endpoint]) == exits.USAGE
    assert "needs your key" in capsys.readouterr().err


class Sender:
    """A program of the operator's own, with one connection to a node."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], node: Node, security: Security) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.curve_publickey, self.socket.curve_secretkey = security.key.public, security.key.secret
        [self.socket.curve_serverkey] = [key for key in security.servers if key == node_key(node, security)]
        self.socket.connect(node.endpoint)

    def say(self, id_: bytes, body: bytes) -> tuple[int, int, list[bytes]]:
        self.socket.send_multipart(native.encode_request(id_, mmi.ORDER, [body]))
        assert self.socket.poll(int(REPLY_S * 1000))
        answer = native.decode(self.socket.recv_multipart())
        assert answer.identity == id_
        return answer.command, answer.value, answer.body

    def stamp(self, word: str) -> Stamp:
        command, _, body = self.say(bytes(23) + b"s", msgspec.json.encode(Sent(word)))
        assert command == native.FINAL
        return msgspec.json.decode(body[1], type=Stamp)

    def close(self) -> None:
        self.socket.close()


def node_key(node: Node, security: Security) -> bytes:
    return security.servers[("primary", "backup").index(node.config["role"])]


def test_an_order_is_carried_out_once_also_after_a_failover(pair: Pair) -> None:
    assert pair.keys is not None
    security = pair.keys.security("chief")
    active, passive = pair.active(), pair.passive()
    id_ = bytes(range(24))
    arguments = msgspec.Raw(b'{"service":"price","why":"mia"}')
    with zmq.Context() as context, ExitStack() as stack:

        def reach(node: Node) -> Sender:
            return stack.enter_context(closing(Sender(context, node, security)))

        first, again, other = reach(active), reach(active), reach(passive)
        stamp, meanwhile = first.stamp("service-pause"), other.stamp("service-resume")
        order = msgspec.json.encode(Sent("service-pause", stamp.node, stamp.epoch, arguments))
        late = msgspec.json.encode(Sent("service-resume", meanwhile.node, meanwhile.epoch, arguments))
        assert first.say(id_, order)[0] == native.FINAL
        assert again.say(id_, order)[:2] == (native.ERROR, ErrorCode.WORKER_LOST), "over another connection"
        assert other.say(id_, order)[:2] == (native.ERROR, ErrorCode.INVALID), "at the other node"
        # Nothing keeps the last moment of a journal whose node is killed.
        await_order(pair, "chief", "service-pause", "order-repeated")
        active.kill()
        # This is the vote.
        assert pair.client().request("price", b"x", timeout=REPLY_S).frames == (b"x",)
        command, code, body = other.say(bytes(23) + b"l", late)
        assert (command, code) == (native.ERROR, ErrorCode.INVALID), "its epoch ended while it was on its way"
        assert b"the order is for epoch" in body[0]
        assert other.say(id_, order)[:2] == (native.ERROR, ErrorCode.INVALID)
        active.launch()
        active.wait_for_state("PASSIVE")
        back = reach(active)
        assert back.say(id_, order)[:2] == (native.ERROR, ErrorCode.INVALID), "at the run that came after"
    for node in pair.nodes:
        assert not any(each.paused for each in node.state().broker.services), "the pause ended with its run"
    await_order(pair, "chief", "service-resume", "order-stale")


def test_a_command_that_names_an_epoch_that_is_over_is_refused(
    pair: Pair, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    active = pair.active()
    epoch = active.state().pair.epoch
    words = ["switchover", "-e", active.endpoint, "--epoch"]
    assert main([*words, str(epoch - 1)]) == exits.FAILED
    assert f"the order is for epoch {epoch - 1}, and the pair is in epoch {epoch}" in capsys.readouterr().err
    assert pair.active() is active


def test_a_node_takes_no_orders_from_elsewhere_unless_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_commands, "_ANSWER_S", REPLY_S)
    with Pair(tmp_path, is_secure=True, settings=CALM) as silent:
        assert silent.keys is not None
        silent.keys.add("chief", "operator", "orders")
        silent.start()
        for name, value in silent.keys.variables("chief").items():
            monkeypatch.setenv(name, value)
        assert main(["switchover", "-e", silent.primary.endpoint]) == exits.FAILED
        assert "its configuration lacks security.orders: true" in capsys.readouterr().err
        assert silent.active() is silent.primary
