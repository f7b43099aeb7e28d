"""Whoever names high epochs cannot stop the service, with real processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import zmq

from bstar.wire import native
from bstar_cli import exits
from bstar_cli.main import main
from support.brokers import Broker
from support.pairs import standing_pair
from support.waiting import LIMIT_S

pytestmark = pytest.mark.loopback

STEP = 2**32


def tell(node: Broker, messages: Sequence[list[bytes]], *, answers: int) -> None:
    """Send these from one socket and wait until all have been read."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as liar:
        liar.linger = 0
        liar.connect(node.endpoint)
        for frames in messages:
            liar.send_multipart(frames)
        for _ in range(answers):
            assert liar.poll(int(LIMIT_S * 1000)), f"no answer\n{node.trouble()}"
            liar.recv_multipart()


def _client_lies(node: Broker) -> None:
    tell(node, [native.encode_ping(epoch=number * STEP) for number in (1, 2, 3)], answers=3)


def _worker_lies(node: Broker) -> None:
    heartbeats = [native.encode_heartbeat(number * STEP) for number in (2, 3)]
    ready = native.encode_ready(b"lies", credit=1, epoch=STEP)
    tell(node, [ready, *heartbeats, native.encode_ping()], answers=2)


def _restart(*nodes: Broker) -> None:
    """All of them are down before the first one is started."""
    for node in nodes:
        if node.is_running:
            node.stop()
    for node in nodes:
        node.launch()
        node.wait_for("answers", lambda _: True)


RESTARTS: tuple[tuple[str, ...], ...] = ((), ("primary",), ("backup", "primary"))


@pytest.mark.parametrize("lie", [_client_lies, _worker_lies])
def test_three_lies_to_either_node_stop_nothing_whatever_is_restarted_afterwards(
    lie: Callable[[Broker], None],
) -> None:
    with standing_pair() as pair, pair.load() as load:
        load.wait_for_replies()
        nodes = {str(node.role): node for node in pair.nodes}
        for restarted in RESTARTS:
            passive = next(node for node in (pair.backup, pair.primary) if not node.state().pair.is_active)
            lie(passive)
            load.wait_for_replies()
            _restart(*(nodes[role] for role in restarted))
            pair.wait_for_workers()
            load.wait_for_replies()
        for node in pair.nodes:
            lie(node)
            load.wait_for_replies()
        assert load.failed == []
        if lie is _client_lies:
            assert max(node.state().pair.epoch_seen for node in pair.nodes) < STEP, "a client was believed"


def test_a_damaged_epoch_file_locks_nobody_out_whichever_node_serves_next() -> None:
    with standing_pair() as pair, pair.load() as load:
        load.wait_for_replies()
        pair.backup.stop()
        stored = Path(pair.backup.config_path.parent, "backup-state", "epoch")
        stored.write_text(f"{2**61}\n")
        pair.backup.launch()
        pair.backup.wait_for_state("PASSIVE")
        load.wait_for_replies()
        # It came down when it heard the active node, so its turn brings no leap.
        pair.primary.kill()
        load.wait_for_replies()
        assert pair.backup.state().pair.epoch < 100
        _restart(pair.primary)
        pair.backup.kill()
        load.wait_for_replies()
        assert load.failed == []


def test_an_operator_takes_the_epoch_back_that_a_worker_raised(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/operations.md, "Epochs that are too high", on a real pair."""
    with standing_pair() as pair, pair.load() as load:
        load.wait_for_replies()
        ready = native.encode_ready(b"lies", credit=1, epoch=STEP)
        tell(pair.primary, [ready, native.encode_ping()], answers=2)
        pair.primary.wait_for("it climbs above the lie", lambda state: state.pair.epoch > STEP)
        pair.primary.wait_for_log(f"names epoch {STEP}")
        files = {node: ["--config", str(node.config_path)] for node in pair.nodes}
        for node in pair.nodes:
            assert main(["epoch", "reset", *files[node]]) == exits.FAILED, "it and its peer run"
            assert main(["epoch", "reset", *files[node], "--force"]) == exits.FAILED, "it runs"
        for each in (*pair.nodes, *pair.workers):
            each.stop()
        assert main(["epoch", "show", *files[pair.primary]]) == exits.OK
        assert "too high: no pair gets above" in capsys.readouterr().out
        for node in pair.nodes:
            assert main(["epoch", "reset", *files[node]]) == exits.OK
        pair.start()
        for worker in pair.workers:
            worker.launch()
        pair.wait_for_workers()
        load.wait_for_replies()
        pair.kill_active()
        load.wait_for_replies()
        assert pair.backup.state().pair.epoch < 100
        assert load.failed == []
