"""Programs with the guide's calls, ``recv(reply)`` and ``send``/``recv``, at a real pair that is killed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from bstar.errors import ConfigurationError, HandlerError
from bstar_client import Worker
from bstar_client.guide import MajorDomoClient, MajorDomoWorker
from support.brokers import BrokerPair

pytestmark = pytest.mark.loopback

LIMIT_S = 120.0
COUNT = 200


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerPair]:
    with BrokerPair(tmp_path_factory.mktemp("guide")) as pair:
        pair.start()
        yield pair


def echo(worker: MajorDomoWorker) -> None:
    """The guide's mdworker."""
    reply = None
    while True:
        request = worker.recv(reply)
        if request is None:
            break
        reply = request


def client_of(pair: BrokerPair) -> MajorDomoClient:
    return MajorDomoClient(",".join(pair.endpoints), wait_s=LIMIT_S, timeout=LIMIT_S)


@pytest.mark.requirement("MDP1-C-04")
@pytest.mark.requirement("MDP1-W-09")
def test_the_guides_loops_get_every_reply_through_kill_9_of_the_active_node(pair: BrokerPair) -> None:
    broker = ",".join(pair.endpoints)
    with MajorDomoWorker(broker, b"echo") as worker, client_of(pair) as client:
        thread = threading.Thread(target=echo, args=[worker])
        thread.start()
        replies = []
        for half in range(2):
            for number in range(COUNT):
                client.send(b"echo", [b"%d" % half, b"%d" % number])
            if not half:
                pair.kill_active().start()
            replies += [client.recv() for _ in range(COUNT)]
        assert client.recv() is None
        assert sorted(reply for reply in replies if reply is not None) == sorted(
            [b"%d" % half, b"%d" % number] for half in range(2) for number in range(COUNT)
        )
        worker.close()
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert worker.recv() is None


@pytest.mark.requirement("MDP1-C-04")
def test_recv_raises_the_error_of_a_request_and_ends_without_a_reply(pair: BrokerPair) -> None:
    def fail(request: object) -> bytes:
        raise ValueError("no such thing")

    with client_of(pair) as client, Worker(pair.endpoints, "fail", fail):
        client.send("fail", b"x")
        with pytest.raises(HandlerError, match="no such thing"):
            client.recv()
    with MajorDomoClient(",".join(pair.endpoints), wait_s=0.01) as client:
        client.send("nobody", b"x")
        assert client.recv() is None
    with pytest.raises(ConfigurationError, match="broker"):
        MajorDomoClient("localhost")


@pytest.mark.requirement("MDP1-W-09")
def test_a_request_whose_program_leaves_goes_to_another_worker(pair: BrokerPair) -> None:
    broker = ",".join(pair.endpoints)
    with client_of(pair) as client:
        first = MajorDomoWorker(broker, "left", drain_timeout_s=0.1)
        client.send("left", b"x")
        assert first.recv() == [b"x"]
        with MajorDomoWorker(broker, "left") as second:
            first.destroy()
            first.close()
            assert second.recv() == [b"x"]
            client.send("left", b"y")
            assert second.recv(b"done") == [b"y"]
            assert client.recv() == [b"done"]


@pytest.mark.requirement("MDP1-W-09")
def test_ctrl_c_ends_the_guides_loop(pair: BrokerPair, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def get(self) -> None:
            raise KeyboardInterrupt

        def put(self, _: object) -> None:
            pass

    with MajorDomoWorker(",".join(pair.endpoints), "interrupted") as worker:
        with monkeypatch.context() as patch:
            patch.setattr(worker, "_requests", Interrupted())
            assert worker.recv() is None
        assert worker._worker.join(0)
