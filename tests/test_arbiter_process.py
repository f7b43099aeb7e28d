"""A pair with an arbiter, all as real processes: what is lost when one is killed, and the command."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq

from bstar.net.curve import NodeSecurity
from bstar.net.sockets import receive_event
from bstar.pair.arbiter import ArbiterServer
from bstar.security import new_key
from bstar.security.keys import write_key
from bstar.settings.principals import LIST_HEAD, entry_line
from bstar.wire.arbiter import Answer, Question, decode_answer, encode_question
from bstar_broker.core.snapshot import NodeState, QuorumState
from bstar_cli import exits
from bstar_cli.main import main
from bstar_testing import LoopbackHost, Process, wait_until
from bstar_testing.nodes import COMMAND
from support.brokers import Timing
from support.pairs import QUICK, Pair, standing_pair
from support.waiting import LIMIT_S, receive_until

pytestmark = pytest.mark.loopback


class Arbiter(Process):
    """``bstar arbiter`` on a port of its own; it may be killed and started again."""

    def __init__(self, folder: Path, port: int) -> None:
        self.endpoint = f"tcp://127.0.0.1:{port}"
        argv = (*COMMAND, "arbiter", "--bind", self.endpoint, "--log-format", "json")
        super().__init__("arbiter", argv, folder=folder)


@contextmanager
def lone_arbiter() -> Iterator[Arbiter]:
    with (
        LoopbackHost() as host,
        tempfile.TemporaryDirectory(prefix="bstar-arbiter-") as folder,
        Arbiter(Path(folder), host.ports(1)[0]) as arbiter,
    ):
        yield arbiter


@contextmanager
def pair_of_three(timing: Timing = QUICK) -> Iterator[tuple[Pair, Process]]:
    with standing_pair(timing, has_arbiter=True) as pair:
        for node in pair.nodes:
            node.wait_for("heard by the arbiter", lambda state: quorum_of(state).is_arbiter_heard)
        assert pair.arbiter is not None
        yield pair, pair.arbiter


def quorum_of(state: NodeState) -> QuorumState:
    assert state.pair.quorum is not None
    return state.pair.quorum


def has_all_grants(state: NodeState) -> bool:
    quorum = quorum_of(state)
    return quorum.has_majority and quorum.is_peer_granting and quorum.is_arbiter_granting


def test_a_killed_active_node_is_followed_by_the_other_with_the_arbiters_voice() -> None:
    with pair_of_three() as (pair, arbiter), pair.load() as load:
        load.wait_for_replies()
        pair.primary.wait_for("confirmed by both", has_all_grants)
        pair.primary.kill()
        pair.backup.wait_for_state("ACTIVE")
        load.wait_for_replies()
        quorum = quorum_of(pair.backup.state())
        assert (quorum.is_arbiter_granting, quorum.is_peer_granting) == (True, False)
        pair.primary.start()
        pair.primary.wait_for_state("PASSIVE")
        pair.backup.wait_for("confirmed by both", has_all_grants)
        load.wait_for_replies()
        load.verify()
        pair.verify_executions(load)
        assert "the ballot is the backup's" in arbiter.log()


def test_without_arbiter_and_without_peer_a_node_stops_until_one_of_them_is_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pair_of_three() as (pair, arbiter):
        arbiter.kill()
        pair.backup.kill()
        state = pair.primary.wait_for_state("PASSIVE")
        assert not quorum_of(state).has_majority
        pair.primary.wait_for("alone", lambda state: not quorum_of(state).is_arbiter_heard)
        assert main(["status", "--endpoints", ",".join(pair.endpoints)]) == exits.NONE_ACTIVE
        assert "silent" in capsys.readouterr().out
        arbiter.start()
        with pair.load() as load:
            pair.primary.wait_for_state("ACTIVE")
            load.wait_for_replies()
            load.verify()


@pytest.mark.parametrize("entry", ["", "{{keys: ['{}'], calls: ['*']}}"], ids=["no key", "no role"])
def test_a_node_that_leaves_the_list_is_cut_off(tmp_path: Path, entry: str) -> None:
    keys = {name: new_key(name) for name in ("arbiter", "left", "stays")}
    write_key(keys["arbiter"], tmp_path)
    listed = tmp_path / "principals.yaml"

    def write(left: str) -> None:
        lines = [entry_line(name, keys[name].public.decode(), [role]) for name, role in roles.items()]
        listed.write_text(LIST_HEAD + "".join(lines) + left)

    roles = {"arbiter": "arbiter", "stays": "peer"}
    public = keys["left"].public.decode()
    write(entry_line("left", public, ["peer"]))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with LoopbackHost() as host, context, context.socket(zmq.DEALER) as node:
        endpoint = f"tcp://127.0.0.1:{host.ports(1)[0]}"
        security = NodeSecurity(str(tmp_path / "arbiter.key"), str(listed), "arbiter")
        with ArbiterServer(endpoint, security) as server:
            thread = threading.Thread(target=server.run)
            thread.start()
            node.linger = 0
            node.curve_publickey, node.curve_secretkey = keys["left"].public, keys["left"].secret
            node.curve_serverkey = keys["arbiter"].public
            with node.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED) as monitor:
                node.connect(endpoint)
                assert monitor.poll(int(LIMIT_S * 1_000))
                assert receive_event(monitor)[0] == zmq.EVENT_HANDSHAKE_SUCCEEDED
                write("  left: " + entry.format(public) + "\n" if entry else "")
                assert monitor.poll(int(LIMIT_S * 1_000))
                assert receive_event(monitor)[0] == zmq.EVENT_DISCONNECTED
                node.disable_monitor()
            server.stop()
            thread.join()


def test_the_command_answers_and_stops_in_good_order() -> None:
    with lone_arbiter() as arbiter:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.connect(arbiter.endpoint)
            numbers = itertools.count(1)

            def ask() -> Answer:
                question = Question("claim", "p", "primary", "we", next(numbers), 20)
                socket.send_multipart(encode_question(question))
                return decode_answer(receive_until(socket, lambda frames: True))

            socket.send_multipart([b"nonsense"])
            wait_until(lambda: ask().is_granted, "a grant")
            assert ask().holder == "primary"
        assert arbiter.stop() == exits.OK
        assert "stopped" in arbiter.log()
        assert "no message between node and arbiter" in arbiter.log()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--bind", "tcp://0.0.0.0:5010"], "--insecure"),
        (["--bind", "nowhere"], "is not an endpoint"),
        (["--bind", "tcp://127.0.0.1:0"], "port"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused(
    arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["arbiter", *arguments]) == exits.USAGE
    assert word in capsys.readouterr().err


def test_an_address_that_is_taken_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with lone_arbiter() as arbiter:
        arbiter.wait_for_log("ready")
        assert main(["arbiter", "--bind", arbiter.endpoint]) == exits.USAGE
        assert "cannot bind" in capsys.readouterr().err


def test_a_node_beside_a_peer_without_the_arbiter_ends_and_names_the_key() -> None:
    with lone_arbiter() as arbiter, standing_pair(workers=0) as pair:
        assert pair.backup.stop() == exits.OK
        text = pair.backup.config_path.read_text()
        pair.backup.config_path.write_text(
            text.replace('"peer_state":', f'"arbiter": "{arbiter.endpoint}", "peer_state":')
        )
        pair.backup.launch()
        pair.backup.wait_exit()
        assert "endpoints.arbiter" in pair.backup.log()
