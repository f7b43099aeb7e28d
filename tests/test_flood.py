"""A client that sends everything before it reads the first reply, as the guide's asynchronous client does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from bstar.settings import Limits
from support.brokers import Profile, Timing, lone_broker

pytestmark = pytest.mark.loopback

COUNT = 100_000
# It ends a hang.
PATIENCE_MS = 120_000
WORKER = ("worker", "--service", "echo", "--credit", "500", "--threads", "1", "--endpoints")


def test_the_defaults_leave_room_for_all_that_one_client_may_send() -> None:
    limits = Limits()
    assert limits.requests_per_client_max >= COUNT
    assert limits.queue_length_max * 0.9 >= limits.requests_per_client_max


@pytest.mark.storm
def test_a_plain_client_that_sends_everything_before_it_reads_gets_every_reply(tmp_path: Path) -> None:
    with lone_broker(tmp_path, Profile(Timing(request_ttl_s=600.0))) as broker, zmq.Context() as context:
        worker = subprocess.Popen([sys.executable, "-m", "bstar_cli", *WORKER, broker.endpoint])
        try:
            with context.socket(zmq.DEALER) as client:
                client.linger = 0
                client.rcvtimeo = client.sndtimeo = PATIENCE_MS
                client.connect(broker.endpoint)
                for number in range(COUNT):
                    client.send_multipart([b"MDPC02", b"\x01", b"echo", b"%d" % number])
                replies = [client.recv_multipart()[-1] for _ in range(COUNT)]
        finally:
            worker.kill()
            worker.wait()
    assert replies == [b"%d" % number for number in range(COUNT)]
