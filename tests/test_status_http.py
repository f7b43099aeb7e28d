"""The HTTP side of a node: what each path says in each situation, and what the careless cannot do to it."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bstar.errors import ClosedError, ConfigurationError
from bstar.net import http_server
from bstar.settings import Http
from bstar_broker.operate import status
from bstar_broker.operate.status import StatusServer
from support.node_states import node_state, service_state
from support.status_site import FakeNode, Site, WaitingNode, running
from support.waiting import LIMIT_S

pytestmark = pytest.mark.loopback


@pytest.fixture
def site() -> Iterator[Site]:
    with running(FakeNode()) as site:
        yield site


def test_port_zero_is_reported(site: Site) -> None:
    assert site.server.url == f"http://127.0.0.1:{site.server.port}"
    assert site.server.port > 0


def test_healthz_is_200_while_the_loop_answers(site: Site) -> None:
    code, body = site.probe("/healthz")
    assert (code, body["ok"], body["state"]) == (200, True, "PASSIVE")


def test_healthz_is_503_when_the_loop_does_not_answer(site: Site) -> None:
    site.node.state = TimeoutError()
    code, body = site.probe("/healthz")
    assert (code, body["ok"]) == (503, False)
    assert "did not answer within 1 s" in body["why"]


def test_healthz_does_not_depend_on_the_peer(site: Site) -> None:
    site.node.state = node_state(peer_age_s=None, peer_state=None, is_peer_fresh=False, state="BACKUP")
    assert site.probe("/healthz")[0] == 200


def test_a_node_that_ends_answers_503(site: Site) -> None:
    site.node.state = ClosedError("the broker is closed")
    assert site.probe("/status") == (503, {"ok": False, "why": "the broker is closed"})


@pytest.mark.parametrize(("is_active", "code"), [(True, 200), (False, 503)])
def test_active_is_200_only_on_the_active_node(site: Site, is_active: bool, code: int) -> None:
    site.node.state = node_state(is_active=is_active, state="ACTIVE" if is_active else "PASSIVE")
    assert site.probe("/active")[0] == code


@pytest.mark.parametrize(
    ("is_ready", "why", "changes"),
    [
        (True, "serves, epoch 3", {"state": "ACTIVE", "is_active": True, "epoch": 3, "retry_after_s": 0}),
        (True, "stands by", {}),
        (True, "the next request", {"is_peer_fresh": False, "retry_after_s": 0}),
        (True, "the next request", {"state": "PRIMARY", "retry_after_s": 0}),
        (False, "waits for the backup", {"state": "PRIMARY", "retry_after_s": 0.2}),
        (False, "never starts alone", {"state": "BACKUP", "retry_after_s": None}),
        (False, "cannot go on", {"state": "ERROR", "retry_after_s": None}),
        (False, "stopping", {"is_leaving": True, "retry_after_s": None}),
        (False, "gives its role up", {"is_draining": True, "state": "ACTIVE", "is_active": True}),
    ],
)
def test_a_node_is_ready_if_requests_may_be_sent_to_it(
    is_ready: bool, why: str, changes: dict[str, Any]
) -> None:
    found = node_state(**changes).readiness
    assert found.is_ready is is_ready
    assert why in found.why


def test_readyz_says_why_not(site: Site) -> None:
    site.node.state = node_state(state="BACKUP", retry_after_s=None)
    code, body = site.probe("/readyz")
    assert code == 503
    assert body["role"] == "backup"
    assert body["reason"] == "never-met-primary"
    assert "never starts alone" in body["why"]


def test_status_is_the_whole_state(site: Site) -> None:
    site.node.state = node_state(service_state("echo", workers=2))
    code, body = site.probe("/status")
    assert code == 200
    assert body["pair"]["state"] == "PASSIVE"
    assert body["broker"]["services"][0]["workers"] == 2


def test_metrics_are_plain_text_or_openmetrics_as_asked(site: Site) -> None:
    response, body = site.ask("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert b'bstar_state{bstar_state="PASSIVE"} 1.0' in body
    response, body = site.ask("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert response.headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")


@pytest.mark.parametrize("version", ["x", "x.y", "", "1" * 5_000])
def test_metrics_are_plain_text_for_who_names_a_version_that_is_none(site: Site, version: str) -> None:
    response, body = site.ask("/metrics", Accept=f"text/plain; version={version}")
    assert response.status == 200
    assert b"bstar_state" in body


def test_metrics_of_a_node_that_does_not_answer_are_503(site: Site) -> None:
    site.node.state = TimeoutError()
    assert site.ask("/metrics")[0].status == 503


def test_the_first_page_links_to_the_others(site: Site) -> None:
    _, body = site.ask("/")
    assert all(f'href="{path}"'.encode() in body for path in ("/healthz", "/readyz", "/active", "/metrics"))


def test_a_query_is_no_part_of_the_path(site: Site) -> None:
    assert site.ask("/healthz?verbose=1")[0].status == 200


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/nowhere"])
def test_head_is_get_without_the_body(site: Site, path: str) -> None:
    response, body = site.ask(path, method="HEAD")
    assert response.status == site.ask(path)[0].status
    assert body == b""
    assert int(response.headers["Content-Length"]) > 0


def test_an_unknown_path_is_404_and_names_the_known_ones(site: Site) -> None:
    code, body = site.probe("/health")
    assert code == 404
    assert "/healthz" in body["paths"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_405(site: Site, method: str) -> None:
    response, _ = site.ask("/status", method=method)
    assert response.status == 405
    assert response.headers["Allow"] == "GET, HEAD"


def test_a_length_of_thousands_of_digits_is_answered(site: Site) -> None:
    headers = b"Content-Length: " + b"9" * 5_000 + b"\r\n"
    # The little that does come is cut off, or the answer would wait for the rest.
    assert site.say(b"POST / HTTP/1.1\r\n" + headers + b"\r\n" + bytes(16_384)).startswith(b"HTTP/1.1 405 ")


def test_a_request_too_large_is_refused(site: Site) -> None:
    headers = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 1_000) for number in range(20))
    assert site.say(b"GET /healthz HTTP/1.1\r\n" + headers + b"\r\n").startswith(b"HTTP/1.1 431 ")


def test_a_request_line_too_long_is_refused(site: Site) -> None:
    assert site.say(b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "octets", [b"\x00\xff\x00\r\n\r\n", b"GET\r\n\r\n", b"\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
def test_garbage_does_no_harm(site: Site, octets: bytes) -> None:
    site.say(octets)
    assert site.probe("/healthz")[0] == 200


def test_nothing_is_written_to_stderr(site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    site.ask("/healthz")
    site.ask("/nowhere")
    site.say(b"GARBAGE\r\n\r\n")
    assert capfd.readouterr().err == ""


def test_our_own_bug_is_500_and_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.node.state = ZeroDivisionError()
    assert site.probe("/healthz")[0] == 500
    assert "a defect of bstar" in caplog.text


def test_probes_in_quick_succession_share_a_snapshot(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "SNAPSHOT_REUSED_S", 3_600.0)
    for _ in range(5):
        site.ask("/healthz")
    assert site.node.asked == 1


def test_whole_requests_are_answered_however_many_slow_connections_there_are(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 3)
    slow: list[socket.socket] = []
    try:
        for number in range(10):
            for _ in range(5):
                connection = socket.create_connection(("127.0.0.1", site.server.port), timeout=30)
                slow.append(connection)
                connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
            code, _ = site.probe("/healthz")
            assert code == 200, f"probe {number}"
        # The first of them made room and were hung up on; the last is still there.
        for connection in slow[:-5]:
            with suppress(ConnectionResetError):
                assert connection.recv(65_536) == b""
        slow[-1].sendall(b"y\r\n\r\n")
        assert slow[-1].recv(65_536).startswith(b"HTTP/1.1 200 ")
    finally:
        for connection in slow:
            connection.close()


def test_who_is_being_answered_does_not_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(http_server, "_ANSWER_S_MAX", 60.0)
    node = WaitingNode()
    with running(node) as site:
        asked = [socket.create_connection(("127.0.0.1", site.server.port), timeout=30) for _ in range(2)]
        for connection in asked:
            connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        for _ in asked:
            assert node.asked_now.acquire(timeout=30)
        assert site.say(b"") == b"", "there is no room"
        node.may_answer.set()
        for connection in asked:
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
            connection.close()


def test_who_takes_too_long_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_S_MAX", 0.1)
    assert site.say(b"GET /healthz HTTP/1.1\r\nX: ") == b""


def test_a_connection_that_cannot_be_accepted_keeps_no_thread_busy(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_room, has_paused = threading.Event(), threading.Event()
    accept = socket.socket.accept

    def perhaps(listener: socket.socket) -> tuple[socket.socket, Any]:
        if not has_room.is_set():
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return accept(listener)

    def pause(_: float) -> None:
        has_paused.set()
        has_room.wait(LIMIT_S)

    monkeypatch.setattr(socket.socket, "accept", perhaps)
    monkeypatch.setattr(http_server, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    with site.connection() as connection:
        assert has_paused.wait(LIMIT_S), "it tries again at once"
        connection.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        has_room.set()
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")
    assert caplog.text.count("no HTTP connection can be accepted: Too many open files") == 1


def test_close_ends_waiting_connections_and_threads() -> None:
    before = set(threading.enumerate())
    with running(FakeNode()) as site:
        idle = socket.create_connection(("127.0.0.1", site.server.port), timeout=30)
        site.ask("/healthz")
    with idle:
        assert idle.recv(1) == b""
    site.server.close()
    # A thread that served may be on its last step.
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive()


def test_an_address_in_use_is_a_configuration_error(site: Site) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.bind: cannot listen on .*choose another"):
        StatusServer(Http(bind=f"127.0.0.1:{site.server.port}"), site.node.snapshot)


def test_a_wrong_address_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"http\.bind"):
        StatusServer(Http(bind="here"), FakeNode().snapshot)


def test_ipv6_has_brackets_in_its_url() -> None:
    try:
        server = StatusServer(Http(bind="[::1]:0"), FakeNode().snapshot)
    except ConfigurationError:
        pytest.skip("this machine has no IPv6")
    with server:
        assert server.url == f"http://[::1]:{server.port}"


def test_the_containers_health_check_fails_while_the_loop_hangs(site: Site) -> None:
    dockerfile = (Path(__file__).parents[1] / "Dockerfile").read_text(encoding="utf-8")
    command = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", dockerfile, re.MULTILINE)
    assert command is not None

    def check() -> int:
        url = f"{site.server.url}/healthz"
        program = [sys.executable, *json.loads(command[1])[1:]]
        return subprocess.run(program, env={"HEALTH_URL": url}, timeout=LIMIT_S, check=False).returncode

    assert check() == 0
    site.node.state = TimeoutError()
    assert check() != 0
