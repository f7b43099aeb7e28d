"""Headers of requests: their bytes, what is refused, and that they reach the handler whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.errors import LocalProtocolError, RejectedError, RemoteProtocolError
from bstar.wire import native
from bstar.wire.extensions import (
    NO_HEADERS,
    age_of,
    attempt_extension,
    attempt_of,
    headers_extensions,
    headers_of,
)
from bstar.wire.limits import HEADER_NAME_BYTES_MAX, HEADERS_BYTES_MAX, HEADERS_MAX
from bstar_client import Ask, AsyncHAClient, AsyncWorker, HAClient, Request, Worker
from bstar_client.core.worker.jobs import WorkerLimits
from bstar_testing import Pair, pair
from support.desk import CLIENT_ID, heard, ident
from support.desk import Desk as ServiceDesk
from support.worker_bench import NativeBench

names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
headers = st.dictionaries(names | st.sampled_from(["traceparent", "tracestate"]), texts, max_size=20)
TENANT = {"tenant": "blue", "traceparent": "00-1-2-01"}


# --- bytes -------------------------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-G-19")
def test_headers_are_laid_out_as_specified() -> None:
    octets = headers_extensions({"tenant": "blü", "traceparent": "00-1-2-01", "tracestate": "a=1"})
    assert octets == b"\x03\x00\x0b\x06tenantbl\xc3\xbc" + b"\x01\x00\x0900-1-2-01" + b"\x02\x00\x03a=1"


@pytest.mark.requirement("BSN-G-19")
@given(headers, st.integers(1, 0xFFFF))
def test_what_was_written_is_read_past_what_the_broker_adds(given: dict[str, str], attempt: int) -> None:
    octets = headers_extensions(given)
    for extensions in (octets + attempt_extension(attempt), attempt_extension(attempt) + octets):
        assert headers_of(extensions) == given
        assert attempt_of(extensions) == attempt


def test_a_reader_cannot_change_headers() -> None:
    with pytest.raises(TypeError):
        headers_of(headers_extensions(TENANT))["tenant"] = "red"  # type: ignore[index]  # that is the point
    assert headers_of(b"") is NO_HEADERS


@given(st.binary(max_size=60))
def test_any_octets_are_headers_or_malformed(octets: bytes) -> None:
    read: Mapping[str, str] = {}
    with suppress(RemoteProtocolError):
        read = headers_of(octets)
    assert headers_of(headers_extensions(read)) == read


def one(name: bytes, text: bytes = b"") -> bytes:
    return b"\x03" + (1 + len(name) + len(text)).to_bytes(2, "big") + bytes([len(name)]) + name + text


@pytest.mark.requirement("BSN-G-19")
@pytest.mark.parametrize(
    "extensions",
    [
        b"\x03\x00\x00",
        b"\x03\x00\x02\x02a",
        one(b""),
        one(b"a b"),
        one(b"a\x00"),
        one("ü".encode()),
        one(b"x" * (HEADER_NAME_BYTES_MAX + 1)),
        one(b"a", b"\xff"),
        b"\x01\x00\x01\xff",
        one(b"a") * 2,
        b"\x01\x00\x011" + one(b"traceparent", b"2"),
        b"".join(one(b"%d" % number) for number in range(HEADERS_MAX + 1)),
        one(b"a", b"x" * HEADERS_BYTES_MAX),
    ],
)
def test_malformed_headers_are_refused(extensions: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="header"):
        headers_of(extensions)


@pytest.mark.requirement("BSN-G-12")
def test_what_follows_a_torn_extension_is_no_header() -> None:
    assert headers_of(one(b"a", b"1") + b"\x03\x00\x09\x01b") == {"a": "1"}


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"": "x"}, "1 to 128 characters"),
        ({"a b": "x"}, "visible ASCII"),
        ({"größe": "x"}, "visible ASCII"),
        ({"x" * 129: "x"}, "1 to 128"),
        ({"a": "\ud800"}, "header a cannot be written as UTF-8"),
        ({"a": "x" * 8_000}, "header a has more than 8000 bytes"),
        ({"a": "x" * 5_000, "b": "x" * 5_000}, "at most 8000 bytes, not 10010"),
        ({str(number): "" for number in range(65)}, "at most 64 headers, not 65"),
    ],
)
def test_headers_that_cannot_be_sent_are_named(given: dict[str, str], match: str) -> None:
    with pytest.raises(LocalProtocolError, match=match):
        headers_extensions(given)


@pytest.mark.parametrize("given", ["a=1", [("a", "1")], {"a": b"1"}, {b"a": "1"}, {"a": 1}])
def test_headers_are_names_and_texts(given: object) -> None:
    with pytest.raises(TypeError, match="mapping of names to texts"):
        headers_extensions(given)  # type: ignore[arg-type]  # that is the point


# --- the cores ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("BSN-B-27")
def test_a_node_tells_how_long_it_has_had_a_request_with_headers() -> None:
    extensions = headers_extensions(TENANT)
    node = ServiceDesk()
    node.send(b"c", *native.encode_request(ident(1), b"echo", [b"x"], extensions=extensions + b"\4\0\4abcd"))
    node.send(b"c", *native.encode_request(ident(2), b"echo", [b"x"]))
    node.send(
        b"c", *native.encode_request(ident(3), b"echo", [b"x"], extensions=b"\x40\x1f\xf7" + bytes(8183))
    )
    node.now += 2.5
    requests = [frames for frames in node.ready(b"w", credit=9) if heard(frames).command == native.REQUEST]
    assert [age_of(heard(frames).extensions) for frames in requests] == [2_500, None, None]
    assert headers_of(heard(requests[0]).extensions) == TENANT
    bench = NativeBench(WorkerLimits(credit=9))
    bench.connect(0, epoch=7)
    for frames in requests:
        bench.hear(0, frames)
    assert [job.accepted_at for job in bench.begun()] == [pytest.approx(bench.now - 2.5), None, None]


def test_the_octets_of_headers_count_in_the_bounds_of_the_queue() -> None:
    node, extensions = ServiceDesk(), headers_extensions(TENANT)
    node.send(b"c", *native.encode_request(ident(1), b"echo", [b"xyz"], extensions=extensions))
    assert node.ledger.waiting.size_bytes == 3 + len(extensions)
    node.ready(b"w")
    node.final(b"w", 1)
    assert node.ledger.waiting.size_bytes == 0


@pytest.mark.requirement("BSN-B-27")
def test_a_row_with_headers_has_the_age_of_its_batch() -> None:
    node = ServiceDesk()
    extensions = [headers_extensions(TENANT), b""]
    node.send(
        b"c", *native.encode_requests(CLIENT_ID, b"echo", [1, 2], [0, 0], [b"", b""], extensions=extensions)
    )
    node.now += 1.5
    [batch] = node.send(
        b"w", *native.encode_ready(b"echo", credit=9, takes_batches=True, takes_extended=True)
    )[1:]
    bench = NativeBench(WorkerLimits(credit=9))
    bench.connect(0, epoch=7)
    bench.hear(0, batch)
    assert [job.headers for job in bench.begun()] == [TENANT, NO_HEADERS]
    assert [job.accepted_at for job in bench.begun()] == [pytest.approx(bench.now - 1.5), None]


# --- over real sockets --------------------------------------------------------------------------------------


def told(request: Request) -> bytes:
    """The handler's view of the headers."""
    return shown(request.headers)


def shown(given: Mapping[str, str]) -> bytes:
    return repr(sorted(given.items())).encode()


@pytest.fixture(scope="module")
def served() -> Iterator[Pair]:
    with pair(workers=0) as each, Worker(each.endpoints, "told", told):
        each.primary.wait_for_workers(1)
        yield each


@pytest.mark.loopback
def test_a_handler_gets_the_headers_of_every_kind_of_call(served: Pair) -> None:
    with HAClient(served.endpoints, timeout=60) as client:
        assert client.request("told", b"x", headers=TENANT).body == shown(TENANT)
        assert client.request("told", b"x").body == shown({})
        assert [reply.body for reply in client.stream("told", b"x", headers=TENANT)] == [shown(TENANT)]
        asks = [Ask(b"x", headers={"number": str(number)}) if number % 3 else b"x" for number in range(50)]
        replies = [reply.body for reply in client.map("told", asks)]
        assert replies == [shown({"number": str(number)} if number % 3 else {}) for number in range(50)]
        with pytest.raises(TypeError, match="mapping of names"):
            client.request("told", b"x", headers={"a": 1})  # type: ignore[dict-item]  # that is the point


@pytest.mark.loopback
async def test_asyncio_has_the_same_words(served: Pair) -> None:
    async def shout(request: Request) -> bytes:
        return shown(request.headers)

    worker = AsyncWorker(served.endpoints, "shout", shout)
    async with worker, AsyncHAClient(served.endpoints, timeout=60) as client:
        assert (await client.request("shout", b"x", headers=TENANT)).body == shown(TENANT)
        bodies = [reply.body async for reply in client.stream("shout", b"x", headers=TENANT)]
        assert bodies == [shown(TENANT)]
        asks = [Ask(b"x", headers=TENANT)] * 20
        assert {reply.body async for reply in client.map("shout", asks)} == {shown(TENANT)}


@pytest.mark.loopback
def test_a_worker_of_plain_mdp_gets_the_body_alone(served: Pair) -> None:
    def frames(request: Request) -> bytes:
        return repr((request.frames, dict(request.headers))).encode()

    with (
        Worker(served.endpoints, "plain", frames, dialect="mdp02"),
        HAClient(served.endpoints, timeout=60) as client,
        HAClient(served.endpoints, timeout=60, dialect="mdp02") as plain,
    ):
        assert client.request("plain", [b"a", b"b"], headers=TENANT).body == b"((b'a', b'b'), {})"
        with pytest.raises(LocalProtocolError, match="has no headers"):
            plain.request("plain", b"x", headers=TENANT)
        assert plain.request("told", b"x", headers={}).body == shown({})


@pytest.mark.loopback
def test_a_request_with_malformed_headers_is_rejected_and_was_not_executed(
    served: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bstar_client.calls.requests.headers_extensions", lambda given: one(b"a b"))
    with HAClient(served.endpoints, timeout=60) as client:
        with pytest.raises(RejectedError, match="headers are malformed"):
            client.request("told", b"x", headers=TENANT)
        assert client.request("told", b"x").body == shown({})


@pytest.mark.loopback
def test_headers_survive_a_failover_and_a_redelivery() -> None:
    begun = threading.Event()
    seen: list[tuple[bool, Mapping[str, str]]] = []

    def handle(request: Request) -> bytes:
        seen.append((request.is_redelivered, request.headers))
        if not request.is_redelivered:
            begun.set()
            threading.Event().wait(0.5)
        return shown(request.headers)

    with pair(workers=0) as p, Worker(p.endpoints, "slow", handle), HAClient(p.endpoints) as client:
        p.primary.wait_for_workers(1)
        replies: list[bytes] = []
        caller = threading.Thread(
            target=lambda: replies.append(client.request("slow", b"x", timeout=60, headers=TENANT).body)
        )
        caller.start()
        assert begun.wait(60)
        p.kill_active()
        caller.join(90)
    assert replies == [shown(TENANT)]
    assert [headers for _, headers in seen] == [TENANT] * len(seen)
    assert seen[-1][0]
