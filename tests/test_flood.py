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
# A published worker of MDP/0.2 in a process of its own, which takes one request at a time.
WORKER = """
import sys, zmq
socket = zmq.Context().socket(zmq.DEALER)
socket.connect(sys.argv[1])
socket.send_multipart([b"MDPW02", b"\\x01", b"echo"])
while True:
    while not socket.poll(500):
        socket.send_multipart([b"MDPW02", b"\\x05"])
    frames = socket.recv_multipart()
    if frames[1] == b"\\x02":
        socket.send_multipart([b"MDPW02", b"\\x04", *frames[2:]])
"""


def test_the_defaults_leave_room_for_all_that_one_client_may_send() -> None:
    limits = Limits()
    assert limits.requests_per_client_max >= COUNT
    assert limits.queue_length_max * 0.9 >= limits.requests_per_client_max


@pytest.mark.storm
def test_a_plain_client_that_sends_everything_before_it_reads_gets_every_reply(tmp_path: Path) -> None:
    with lone_broker(tmp_path, Profile(Timing(request_ttl_s=600.0))) as broker, zmq.Context() as context:
        worker = subprocess.Popen([sys.executable, "-c", WORKER, broker.endpoint])
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
