"""A pair with an arbiter, all as real processes: what is lost when one is killed, and the command."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import zmq

from bstar.wire.arbiter import Answer, Question, decode_answer, encode_question
from bstar_cli import exits
from bstar_cli.main import main
from support.brokers import COMMAND, STOP_S, Ports, Timing, wait_until
from support.pairs import PATIENT, QUICK, Pair, standing_pair
from support.waiting import receive_until

pytestmark = pytest.mark.loopback


class ArbiterProcess:
    """``bstar arbiter`` on a port of its own; it may be killed and started again."""

    def __init__(self, port: int, log_path: Path) -> None:
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                (*COMMAND, "arbiter", "--bind", self.endpoint, "--log-format", "json"), stderr=log
            )

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> int:
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(STOP_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"the arbiter's log:\n{self.log()}")
        self.kill()


@contextmanager
def arbiter_process() -> Iterator[ArbiterProcess]:
    ports = Ports(1)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bstar-arbiter-") as directory,
            ArbiterProcess(ports.numbers[0], Path(directory) / "arbiter.log") as arbiter,
        ):
            yield arbiter
    finally:
        ports.close()


@contextmanager
def pair_of_three(timing: Timing = QUICK) -> Iterator[tuple[Pair, ArbiterProcess]]:
    with arbiter_process() as arbiter:
        changes: dict[str, Any] = {"endpoints": {"arbiter": arbiter.endpoint}}
        with standing_pair(timing, primary=changes, backup=changes) as pair:
            for node in pair.nodes:
                node.wait_for(
                    "heard by the arbiter", lambda state: state["pair"]["quorum"]["is_arbiter_heard"]
                )
            yield pair, arbiter


def has_all_grants(state: dict[str, Any]) -> bool:
    quorum = state["pair"]["quorum"]
    return bool(quorum["has_majority"] and quorum["is_peer_granting"] and quorum["is_arbiter_granting"])


def test_a_killed_active_node_is_followed_by_the_other_with_the_arbiters_voice() -> None:
    with pair_of_three() as (pair, arbiter), pair.load() as load:
        load.wait_for_replies()
        pair.primary.wait_for("confirmed by both", has_all_grants)
        pair.primary.kill()
        pair.backup.wait_for_state("ACTIVE")
        load.wait_for_replies()
        quorum = pair.backup.pair_state()["quorum"]
        assert (quorum["is_arbiter_granting"], quorum["is_peer_granting"]) == (True, False)
        pair.primary.start()
        pair.primary.wait_for_state("PASSIVE")
        pair.backup.wait_for("confirmed by both", has_all_grants)
        load.wait_for_replies()
        load.verify()
        pair.verify_executions(load)
        assert "the ballot is the backup's" in arbiter.log()


def test_nothing_moves_when_the_arbiter_is_killed_and_comes_back() -> None:
    with pair_of_three(PATIENT) as (pair, arbiter), pair.load() as load:
        load.wait_for_replies()
        arbiter.kill()
        for node in pair.nodes:
            node.wait_for("without it", lambda state: not state["pair"]["quorum"]["is_arbiter_heard"])
        load.wait_for_replies()
        arbiter.start()
        pair.primary.wait_for("confirmed by both", has_all_grants)
        load.wait_for_replies()
        load.verify()
        assert {(call.epoch, call.attempts) for call in load.answered} == {(1, 1)}
        assert pair.primary.pair_state()["quorum"]["majorities_lost"] == 0


def test_without_arbiter_and_without_peer_a_node_stops_until_one_of_them_is_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pair_of_three() as (pair, arbiter):
        arbiter.kill()
        pair.backup.kill()
        state = pair.primary.wait_for_state("PASSIVE")
        assert not state["quorum"]["has_majority"]
        pair.primary.wait_for("alone", lambda state: not state["pair"]["quorum"]["is_arbiter_heard"])
        assert main(["status", "--endpoints", ",".join(pair.endpoints)]) == exits.NONE_ACTIVE
        assert "silent" in capsys.readouterr().out
        arbiter.start()
        with pair.load() as load:
            pair.primary.wait_for_state("ACTIVE")
            load.wait_for_replies()
            load.verify()


def test_an_orderly_stop_hands_the_role_over_with_the_ballots() -> None:
    with pair_of_three() as (pair, _), pair.load() as load:
        load.wait_for_replies()
        assert pair.primary.terminate() == exits.OK
        pair.backup.wait_for_state("ACTIVE")
        load.wait_for_replies()
        load.verify()
        pair.verify_executions(load)


def test_the_command_answers_and_stops_in_good_order() -> None:
    with arbiter_process() as arbiter:
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
        assert arbiter.terminate() == exits.OK
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
    with arbiter_process() as arbiter:
        wait_until(lambda: "ready" in arbiter.log(), "the arbiter is ready")
        assert main(["arbiter", "--bind", arbiter.endpoint]) == exits.USAGE
        assert "cannot bind" in capsys.readouterr().err


def test_a_node_beside_a_peer_without_the_arbiter_ends_and_names_the_key() -> None:
    with arbiter_process() as arbiter, standing_pair(workers=0) as pair:
        assert pair.backup.terminate() == exits.OK
        text = pair.backup.config_path.read_text()
        pair.backup.config_path.write_text(
            text.replace('"peer_state":', f'"arbiter": "{arbiter.endpoint}", "peer_state":')
        )
        pair.backup.launch()
        wait_until(lambda: not pair.backup.is_running(), "the backup has ended")
        assert "endpoints.arbiter" in pair.backup.log()
