"""The pages of a node behind TLS and credentials: who gets what, and what hostile peers cannot do."""

from __future__ import annotations

import json
import logging
import re
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bstar.errors import ConfigurationError
from bstar.net import http_server
from bstar.net.http_access import read_tls
from bstar.settings import Http, from_mapping
from bstar_broker.operate import status
from bstar_broker.server import BrokerServer
from bstar_testing import LoopbackHost
from bstar_testing.processes import wait_until
from support.certificates import make_certificate
from support.status_site import FakeNode, Site, running
from support.waiting import LIMIT_S

pytestmark = pytest.mark.loopback

TOKEN = "the-token-of-prometheus"
PASSWORD = "the password of ada"
OPEN = ("/healthz", "/readyz", "/active")
CLOSED = (
    "/",
    "/status",
    "/metrics",
    "/nowhere",
    "/healthz/",
    "/status?/healthz",
    "/status/../healthz",
    "/%68ealthz",
)
HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # how a TLS handshake begins


class Files(NamedTuple):
    certificate: Path
    key: Path
    tokens: Path

    def settings(self) -> Http:
        return Http(certificate=str(self.certificate), key=str(self.key), tokens=str(self.tokens))

    def trust(self) -> ssl.SSLContext:
        """What a client uses that trusts this certificate only."""
        return ssl.create_default_context(cafile=str(self.certificate))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """For the tests that change no file."""
    return make_files(tmp_path_factory.mktemp("https"))


def make_files(folder: Path) -> Files:
    tokens = folder / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"{TOKEN}\nada:{PASSWORD}\n")
    return Files(*make_certificate(folder, "node"), tokens)


@pytest.fixture
def site(made: Files) -> Iterator[Site]:
    with running(FakeNode(), made.settings(), made.trust()) as site:
        yield site


@pytest.fixture
def plain_site(made: Files) -> Iterator[Site]:
    """With credentials and without TLS."""
    with running(FakeNode(), Http(tokens=str(made.tokens))) as site:
        yield site


def basic(text: str) -> str:
    return "Basic " + b64encode(text.encode()).decode()


def connect(site: Site) -> socket.socket:
    return socket.create_connection(("127.0.0.1", site.server.port), timeout=LIMIT_S)


# --- credentials --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", OPEN)
def test_a_probe_needs_no_credentials(site: Site, path: str) -> None:
    assert site.ask(path)[0].status == (503 if path == "/active" else 200)
    assert site.ask(path, Authorization="Bearer wrong")[0].status == (503 if path == "/active" else 200)


@pytest.mark.parametrize("path", CLOSED)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_everything_else_does_whatever_the_method(plain_site: Site, path: str, method: str) -> None:
    response, body = plain_site.ask(path, method)
    assert response.status == 401
    assert response.headers.get_all("WWW-Authenticate") == [
        'Bearer realm="bstar"',
        'Basic realm="bstar", charset="UTF-8"',
    ]
    assert body == (b"" if method == "HEAD" else b'{"ok":false,"why":"this page needs credentials"}\n'), (
        "a page that needs credentials shows nothing, not even whether it exists"
    )


@pytest.mark.parametrize("path", ["/", "/status", "/metrics"])
@pytest.mark.parametrize("shown", [f"Bearer {TOKEN}", basic(f"ada:{PASSWORD}")])
def test_who_shows_a_listed_secret_reads_every_page(site: Site, path: str, shown: str) -> None:
    assert site.ask(path, Authorization=shown)[0].status == 200


def test_who_shows_another_one_reads_nothing(site: Site) -> None:
    for shown in (f"Bearer {TOKEN}x", basic("ada:wrong"), basic(f"eve:{PASSWORD}"), f"Basic {TOKEN}", "x"):
        response, body = site.ask("/status", Authorization=shown)
        assert response.status == 401
        assert json.loads(body) == {"ok": False, "why": "these credentials are not listed"}
        assert site.node.asked == 0


def test_two_authorization_headers_are_no_authorization(plain_site: Site) -> None:
    header = f"Authorization: Bearer {TOKEN}\r\n".encode()
    one = plain_site.say(b"GET /status HTTP/1.1\r\n" + header + b"\r\n")
    two = plain_site.say(b"GET /status HTTP/1.1\r\n" + 2 * header + b"\r\n")
    assert one.startswith(b"HTTP/1.1 200 ")
    assert two.startswith(b"HTTP/1.1 401 ")


def test_a_request_of_http_0_9_needs_them_too(plain_site: Site) -> None:
    assert plain_site.say(b"GET /status\r\n\r\n").startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("junk", [b"\xff" * 5_000, b"=" * 9_000, b"Basic " + b"A" * 10_001, b"\0\1\2"])
def test_junk_in_the_header_is_answered(plain_site: Site, junk: bytes) -> None:
    said = plain_site.say(b"GET /status HTTP/1.1\r\nAuthorization: " + junk + b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 401 ")


def test_without_a_file_of_tokens_tls_alone_asks_nobody(made: Files) -> None:
    settings = Http(certificate=str(made.certificate), key=str(made.key))
    with running(FakeNode(), settings, made.trust()) as site:
        assert site.ask("/status")[0].status == 200


# --- TLS ----------------------------------------------------------------------------------------------------


def test_the_url_says_https(site: Site) -> None:
    assert site.server.url == f"https://127.0.0.1:{site.server.port}"


def test_a_page_comes_whole_and_its_end_is_said(site: Site, made: Files) -> None:
    with (
        connect(site) as bare,
        # A connection that breaks instead raises an error.
        made.trust().wrap_socket(bare, server_hostname="127.0.0.1", suppress_ragged_eofs=False) as client,
    ):
        client.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        said = b"".join(iter(lambda: client.recv(65_536), b""))
    assert said.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_1_2_and_1_3_are_spoken(site: Site, made: Files, version: ssl.TLSVersion) -> None:
    trust = made.trust()
    trust.minimum_version = trust.maximum_version = version
    site.trust = trust
    assert site.probe("/healthz")[0] == 200


def test_older_ones_are_not(made: Files) -> None:
    context = read_tls(str(made.certificate), str(made.key))
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION, "each handshake costs the node, so a client has one"


def test_a_request_in_the_clear_is_told_so_and_gets_no_page(site: Site) -> None:
    for path in ("/healthz", "/status"):
        header = f"Authorization: Bearer {TOKEN}\r\n".encode()
        said = site.say(b"GET " + path.encode() + b" HTTP/1.1\r\n" + header + b"\r\n")
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"this port speaks HTTPS only" in said
    assert site.node.asked == 0
    assert site.server.access.refusals == {"no-tls": 2}


@pytest.mark.parametrize(
    "octets", [b"\x16", HELLO, HELLO + bytes(600), b"\x16\x03\x01\x00\x05hello", b"\x16" * 20_000]
)
def test_garbage_in_a_handshake_harms_nobody(site: Site, octets: bytes) -> None:
    with connect(site) as stranger, suppress(OSError):  # it may hang up at any of these
        stranger.sendall(octets)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(65_536):
            pass
    assert site.probe("/healthz")[0] == 200
    access = site.server.access
    wait_until(lambda: access.refusals == {"tls-failed": 1}, "the handshake is counted")


def test_a_client_that_does_not_trust_the_certificate_is_named_in_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.trust = ssl.create_default_context()
    with pytest.raises(ssl.SSLCertVerificationError):
        site.ask("/healthz")
    wait_until(lambda: "tls-failed" in caplog.text, "the refusal is logged")
    assert "127.0.0.1: tls-failed (TLSV1_ALERT_UNKNOWN_CA)" in caplog.text


def test_handshakes_that_never_end_make_room_for_whole_requests(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 3)
    with ExitStack() as stack:
        slow: list[socket.socket] = []
        for number in range(6):
            for _ in range(5):
                slow.append(stack.enter_context(connect(site)))
                slow[-1].sendall(HELLO)
            assert site.probe("/healthz")[0] == 200, f"probe {number}"
        for connection in slow[:-5]:
            with suppress(ConnectionResetError):
                assert connection.recv(65_536) == b"", "the first of them made room"


def test_a_handshake_that_takes_too_long_is_cut_off(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_S_MAX", 0.1)
    for octets in (b"", HELLO):
        with suppress(ConnectionResetError):  # if it had not read them yet
            assert site.say(octets) == b""


def test_a_slow_handshake_keeps_nobody_from_being_accepted(site: Site) -> None:
    with connect(site) as slow:
        slow.sendall(HELLO)
        assert site.probe("/healthz")[0] == 200


def test_headers_too_large_are_refused_behind_tls_too(site: Site) -> None:
    headers = {f"X-{number}": "x" * 1_000 for number in range(20)}
    assert site.ask("/status", **headers)[0].status == 431


def test_close_ends_handshakes_and_their_threads(made: Files) -> None:
    before = set(threading.enumerate())
    with running(FakeNode(), made.settings(), made.trust()) as site:
        idle = connect(site)
        idle.sendall(HELLO)
        site.ask("/healthz")
    with idle, suppress(ConnectionResetError):
        assert idle.recv(1) == b""
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("has_tls", [True, False])
def test_the_containers_health_check_asks_with_and_without_tls(made: Files, has_tls: bool) -> None:
    dockerfile = (Path(__file__).parents[1] / "Dockerfile").read_text(encoding="utf-8")
    command = re.search(r"^HEALTHCHECK .*\\\n +CMD (\[.*\])$", dockerfile, re.MULTILINE)
    assert command is not None
    with running(FakeNode(), made.settings() if has_tls else None) as site:

        def check() -> int:
            url = f"{site.server.url}/healthz"
            program = [sys.executable, *json.loads(command[1])[1:]]
            return subprocess.run(program, env={"HEALTH_URL": url}, timeout=LIMIT_S, check=False).returncode

        assert check() == 0
        site.node.state = TimeoutError()
        assert check() != 0


# --- files that change --------------------------------------------------------------------------------------


def test_a_new_certificate_and_new_tokens_hold_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "LOOK_INTERVAL_S", 0.05)
    files = make_files(tmp_path)
    with running(FakeNode(), files.settings(), files.trust()) as site:
        access = site.server.access
        assert site.ask("/status", Authorization=f"Bearer {TOKEN}")[0].status == 200

        files.tokens.write_text("a-token-that-is-new\n")
        wait_until(lambda: access.credentials == 1, "the tokens are read again")
        assert site.ask("/status", Authorization=f"Bearer {TOKEN}")[0].status == 401
        assert site.ask("/status", Authorization="Bearer a-token-that-is-new")[0].status == 200

        certificate, key = make_certificate(tmp_path, "next")
        certificate.replace(files.certificate)
        wait_until(lambda: access.error != "", "the certificate does not fit the key")
        assert "is not the key of the certificate" in access.error
        assert site.probe("/healthz")[0] == 200, "the one from before holds"
        key.replace(files.key)
        wait_until(lambda: not access.error, "both are new")
        with pytest.raises(ssl.SSLCertVerificationError):
            site.probe("/healthz")
        site.trust = files.trust()
        assert site.probe("/healthz")[0] == 200


def test_what_is_wrong_with_a_certificate_is_told_with_its_path(made: Files, tmp_path: Path) -> None:
    other, other_key = make_certificate(tmp_path, "other")
    locked, broken, nothing = (tmp_path / name for name in ("locked.key", "broken.key", "nothing"))
    locked.touch(0o600)
    locked.write_bytes(_with_pass_phrase(other_key))
    broken.touch(0o600)
    broken.write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    nothing.touch(0o600)
    lent = tmp_path / "lent.key"
    lent.write_bytes(other_key.read_bytes())
    lent.chmod(0o640)
    for certificate, key, said in (
        (nothing, made.key, f"http.certificate: {nothing}: holds no CERTIFICATE in PEM"),
        (tmp_path / "gone", made.key, f"http.certificate: {tmp_path}/gone: cannot be read: No such file"),
        (made.certificate, nothing, f"http.key: {nothing}: holds no PRIVATE KEY in PEM"),
        (
            made.certificate,
            made.certificate,
            f"http.key: {made.certificate}: others may read this private key",
        ),
        (other, lent, f"http.key: {lent}: others may read this private key: chmod 600 {lent}"),
        (other, made.key, f"http.key: {made.key}: is not the key of the certificate {other}"),
        (other, locked, f"http.key: {locked}: has a pass phrase"),
        (other, broken, f"http.key: {broken}: OpenSSL cannot use it with the certificate {other}: "),
    ):
        with pytest.raises(ConfigurationError) as caught:
            read_tls(str(certificate), str(key))
        assert str(caught.value).startswith(said)


def _with_pass_phrase(key: Path) -> bytes:
    command = ["openssl", "pkey", "-in", str(key), "-aes128", "-passout", "pass:secret"]
    return subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=True).stdout


# --- a whole node -------------------------------------------------------------------------------------------


@pytest.fixture
def host() -> Iterator[LoopbackHost]:
    with LoopbackHost() as host:
        yield host


def test_a_node_serves_its_pages_so_and_shows_no_secret(
    made: Files, host: LoopbackHost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(status, "SNAPSHOT_REUSED_S", 0.0)  # a page shows the refusals before it
    clients, state, peer_state = (f"tcp://127.0.0.1:{number}" for number in host.ports(3))
    settings = from_mapping(
        {
            "role": "primary",
            "endpoints": {"clients": clients, "state": state, "peer_state": peer_state},
            "http": {
                "bind": "127.0.0.1:0",
                "certificate": str(made.certificate),
                "key": str(made.key),
                "tokens": str(made.tokens),
            },
        }
    )
    pages: dict[str, str] = {}
    with BrokerServer(settings) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            for shown in (f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}"):
                for path in ("/healthz", "/readyz", "/active", "/status", "/metrics"):
                    request = urllib.request.Request(
                        f"{server.http_url}{path}", headers={"Authorization": shown}
                    )
                    try:
                        with urllib.request.urlopen(request, timeout=LIMIT_S, context=made.trust()) as answer:
                            pages[path] = answer.read().decode()
                    except urllib.error.HTTPError as error:
                        pages[f"{path} {error.code}"] = error.read().decode()
        finally:
            server.stop()
            thread.join(LIMIT_S)
    http = json.loads(pages["/status"])["security"]["http"]
    assert http == {"is_encrypted": True, "credentials": 2, "refusals": {"wrong-credentials": 2}, "error": ""}
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parse(pages["/metrics"])
        for sample in family.samples
        if sample.name.startswith("bstar_http")
    }
    assert found == {
        ("bstar_http_tls",): 1,
        ("bstar_http_credentials",): 2,
        ("bstar_http_files_broken",): 0,
        ("bstar_http_refused_total", "wrong-credentials"): 2,
    }
    assert "wrong-credentials" in caplog.text
    texts = [caplog.text, *pages.values()]
    assert not [text for text in texts if TOKEN[:-1] in text or PASSWORD in text or "PRIVATE" in text]
