"""Traces of calls and handlers, with the SDK's exporter in memory."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bstar.errors import DeclinedError, HandlerError
from bstar.wire.limits import HEADERS_BYTES_MAX
from bstar_client import (
    Ask,
    AsyncHAClient,
    AsyncWorker,
    Declined,
    HAClient,
    Request,
    Worker,
    WorkerHooks,
    tracing,
)
from bstar_client.core.calls import Call
from bstar_testing import Pair, pair, wait_until

pytestmark = pytest.mark.loopback

PAGE = Path(__file__).parents[1] / "docs" / "tracing.md"
WAIT_S = 90


class Collector:
    """A program's provider of tracers, and the spans that have ended."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """In the order in which they began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def wait(self, count: int) -> list[ReadableSpan]:
        """A handler's span ends after its reply has left."""
        ended = threading.Event()
        for _ in range(WAIT_S * 100):
            if len(self.spans) >= count:
                return self.spans
            ended.wait(0.01)
        pytest.fail(f"{len(self.spans)} spans, not {count}")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Pair]:
    with pair(workers=0) as each:
        yield each


def worker(
    nodes: Pair, collector: Collector, service: str, handler: Callable[[Request], bytes], **options: object
) -> Worker:
    hooks = tracing.SpanHooks(tracer_provider=collector.provider)
    return Worker(nodes.endpoints, service, handler, hooks=hooks, **options)  # type: ignore[arg-type]  # by name


def client(nodes: Pair, collector: Collector) -> HAClient:
    made = HAClient(nodes.endpoints, timeout=WAIT_S)
    tracing.instrument(made, tracer_provider=collector.provider)
    return made


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def attribute(span: ReadableSpan, name: str) -> object:
    assert span.attributes is not None
    return span.attributes.get(name)


def test_a_call_its_wait_and_its_handler_are_one_trace(nodes: Pair, collector: Collector) -> None:
    with (
        worker(nodes, collector, "price", lambda request: request.body),
        client(nodes, collector) as asking,
        collector.provider.get_tracer("program").start_as_current_span("checkout") as checkout,
    ):
        asking.request("price", b"apple", headers={"tenant": "blue"})
        collector.wait(3)
    _, call, wait, process = collector.spans
    assert [span.name for span in collector.spans] == [
        "checkout",
        "request price",
        "wait price",
        "process price",
    ]
    assert {span.context.trace_id for span in collector.spans} == {checkout.get_span_context().trace_id}
    assert parent_of(call) == checkout.get_span_context().span_id
    assert parent_of(wait) == parent_of(process) == call.context.span_id
    assert (call.kind, process.kind) == (trace.SpanKind.PRODUCER, trace.SpanKind.CONSUMER)
    assert attribute(call, "messaging.message.id") == attribute(process, "messaging.message.id")
    assert f"tcp://{attribute(call, 'server.address')}:{attribute(call, 'server.port')}" in nodes.endpoints
    assert attribute(process, "bstar.epoch") == attribute(call, "bstar.epoch")
    assert (wait.end_time or 0) <= (process.end_time or 0)


def test_a_durable_request_carries_the_span_in_which_it_was_submitted(collector: Collector) -> None:
    with (
        pair(workers=0, has_store=True) as stored,
        client(stored, collector) as asking,
        collector.provider.get_tracer("program").start_as_current_span("checkout") as checkout,
    ):
        first = asking.submit("price", b"apple", headers={"tenant": "blue"})
        full = asking.submit("price", b"pear", headers={"x": "y" * (HEADERS_BYTES_MAX - 10)})
        seen: list[str] = []

        def price(request: Request) -> bytes:
            seen.append(",".join(request.headers))
            return b""

        with worker(stored, collector, "price", price):
            for each in (first, full):
                asking.result(each)
    assert seen == ["tenant,traceparent", "x"]
    process = collector.named("process price")[0]
    assert parent_of(process) == checkout.get_span_context().span_id


def test_a_failed_handler_is_an_error_in_both_spans(nodes: Pair, collector: Collector) -> None:
    def fail(request: Request) -> bytes:
        raise ValueError("no apples")

    with worker(nodes, collector, "failing", fail), client(nodes, collector) as asking:
        with pytest.raises(HandlerError):
            asking.request("failing", b"")
        collector.wait(3)
    [call], [process] = collector.named("request failing"), collector.named("process failing")
    assert (attribute(call, "error.type"), attribute(process, "error.type")) == ("HandlerError", "ValueError")
    assert {call.status.status_code, process.status.status_code} == {trace.StatusCode.ERROR}
    assert "no apples" in (process.status.description or "")


def test_a_declined_request_is_no_error_in_either_span(nodes: Pair, collector: Collector) -> None:
    def decline(request: Request) -> bytes:
        raise Declined("no-such-sku", "we do not sell 7", data={"near": [6, 8]})

    with worker(nodes, collector, "strict", decline), client(nodes, collector) as asking:
        with pytest.raises(DeclinedError) as caught:
            asking.request("strict", b"")
        collector.wait(3)
    assert (caught.value.code, caught.value.data) == ("no-such-sku", {"near": [6, 8]})
    [call], [process] = collector.named("request strict"), collector.named("process strict")
    for span in (call, process):
        assert attribute(span, "bstar.declined") == "no-such-sku"
        assert attribute(span, "error.type") is None
        assert span.status.status_code is not trace.StatusCode.ERROR


def test_a_cancelled_request_ends_its_span_without_an_error(nodes: Pair, collector: Collector) -> None:
    begun = threading.Event()

    def stop(request: Request) -> bytes:
        left = threading.Event()
        request.on_cancel(left.set)
        begun.set()
        left.wait(WAIT_S)
        raise InterruptedError("stopped")

    with worker(nodes, collector, "left", stop), client(nodes, collector) as asking:
        call = asking.begin("left", b"")
        assert begun.wait(WAIT_S)
        call.cancel()
        wait_until(lambda: collector.named("process left"), "the handler's span ends", limit_s=WAIT_S)
    [process] = collector.named("process left")
    assert attribute(process, "bstar.cancelled") is True
    assert process.status.status_code is not trace.StatusCode.ERROR


def test_calls_of_a_map_are_spans_of_their_own_and_keep_their_headers(
    nodes: Pair, collector: Collector
) -> None:
    tenants = []

    def note(request: Request) -> bytes:
        tenants.append(request.headers.get("tenant"))
        return b""

    with worker(nodes, collector, "many", note, credit=50), client(nodes, collector) as asking:
        asks = [Ask(b"x", headers={"tenant": "blue"}) if each % 2 else b"x" for each in range(40)]
        assert len(list(asking.map("many", asks))) == 40
        collector.wait(120)
    calls = {span.context.span_id for span in collector.named("request many")}
    assert {parent_of(span) for span in collector.named("process many")} == calls
    assert {parent_of(span) for span in collector.named("wait many")} == calls
    assert len(calls) == 40
    assert sorted(map(str, tenants)) == ["None"] * 20 + ["blue"] * 20


def test_the_handlers_own_calls_and_log_lines_belong_to_the_trace(
    nodes: Pair, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("program")
    caplog.handler.addFilter(tracing.TraceFilter())
    with client(nodes, collector) as asking:

        def relay(request: Request) -> bytes:
            log.warning("relayed")
            return asking.request("inner", request.body).body

        with (
            worker(nodes, collector, "inner", lambda request: b"in"),
            worker(nodes, collector, "outer", relay),
        ):
            assert asking.request("outer", b"x").body == b"in"
            collector.wait(6)
            log.warning("outside")
    [process], [inner] = collector.named("process outer"), collector.named("request inner")
    assert parent_of(inner) == process.context.span_id
    [relayed] = [record for record in caplog.records if record.message == "relayed"]
    [outside] = [record for record in caplog.records if record.message == "outside"]
    told = vars(relayed)
    assert told["trace_id"] == f"{process.context.trace_id:032x}"
    assert told["span_id"] == f"{process.context.span_id:016x}"
    assert vars(outside)["trace_id"] == ""


def test_asyncio_has_the_same_spans(nodes: Pair, collector: Collector) -> None:
    async def shout(request: Request) -> bytes:
        await asyncio.sleep(0)
        return str(trace.get_current_span().get_span_context().span_id).encode()

    async def ask() -> list[bytes]:
        hooks = tracing.SpanHooks(tracer_provider=collector.provider)
        served = AsyncWorker(nodes.endpoints, "shout", shout, hooks=hooks)
        async with served, AsyncHAClient(nodes.endpoints, timeout=WAIT_S) as asking:
            tracing.instrument(asking, tracer_provider=collector.provider)
            return list(await asyncio.gather(*(_body(asking) for _ in range(5))))

    async def _body(asking: AsyncHAClient) -> bytes:
        return (await asking.request("shout", b"x")).body

    bodies = asyncio.run(ask())
    spans = collector.wait(15)
    assert len(spans) == 15
    processes = collector.named("process shout")
    assert sorted(bodies) == sorted(str(span.context.span_id).encode() for span in processes)
    assert {parent_of(span) for span in processes} == {
        span.context.span_id for span in collector.named("request shout")
    }


def test_the_programs_own_hooks_are_called_too(nodes: Pair, collector: Collector) -> None:
    seen: list[tuple[str, bool]] = []

    class Own(WorkerHooks):
        def request_started(self, worker: object, request: Request) -> None:
            seen.append(("started", trace.get_current_span().is_recording()))

        def request_finished(self, worker: object, request: Request) -> None:
            seen.append(("finished", trace.get_current_span().is_recording()))
            raise ValueError("a hook that fails leaves the span alone")

    hooks = tracing.SpanHooks(Own(), tracer_provider=collector.provider)
    with (
        Worker(nodes.endpoints, "hooked", lambda request: b"", hooks=hooks),
        client(nodes, collector) as asking,
    ):
        asking.request("hooked", b"")
        asking.request("hooked", b"")
        collector.wait(6)
    assert seen == [("started", True), ("finished", True)] * 2


def test_a_request_without_room_for_its_trace_is_sent_without(nodes: Pair, collector: Collector) -> None:
    full = {"a": "x" * (HEADERS_BYTES_MAX - 5)}
    with (
        worker(nodes, collector, "full", lambda request: b"%d" % len(request.headers)),
        client(nodes, collector) as asking,
    ):
        assert asking.request("full", b"", headers=full).body == b"1"
        collector.wait(3)
    [process] = collector.named("process full")
    assert process.parent is None


def test_a_stream_is_one_span_also_if_its_reader_leaves(nodes: Pair, collector: Collector) -> None:
    def count(request: Request) -> Iterator[bytes]:
        yield b"1"
        if request.body:
            left.wait(WAIT_S)

    left = threading.Event()
    hooks = tracing.SpanHooks(tracer_provider=collector.provider)
    with Worker(nodes.endpoints, "count", count, hooks=hooks), client(nodes, collector) as asking:
        assert len(list(asking.stream("count", b""))) == 2
        collector.wait(3)
        replies = asking.stream("count", b"until its reader has left")
        next(replies)
        replies.close()
        collector.wait(5)
        left.set()
        collector.wait(6)
    calls = collector.named("request count")
    assert [attribute(call, "bstar.abandoned") for call in calls] == [None, True]


class BadTracer:
    """A program's tracer, each step of which fails."""

    def begin(self, call: Call, headers: object) -> NoReturn:
        call.trace = self
        raise ValueError("ours")

    def carried(self, headers: object) -> NoReturn:
        raise ValueError("ours")

    def ended(self, call: Call, *_: object) -> NoReturn:
        raise ValueError("ours")

    replied = failed = abandoned = ended


def test_a_tracer_that_fails_costs_no_call(nodes: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def handle(request: Request) -> bytes:
        if request.body == b"bad":
            raise ValueError("no")
        return request.body

    async def ask() -> list[bytes]:
        async with AsyncHAClient(nodes.endpoints, timeout=WAIT_S) as asking:
            asking.trace(BadTracer())
            return [each.body async for each in asking.map("traced", [b"3", b"4"])]

    with Worker(nodes.endpoints, "traced", handle), HAClient(nodes.endpoints, timeout=WAIT_S) as asking:
        asking.trace(BadTracer())
        assert asking.request("traced", b"1", headers={"tenant": "blue"}).body == b"1"
        assert [each.body for each in asking.map("traced", [b"1", b"2"])] == [b"1", b"2"]
        with pytest.raises(HandlerError, match="no"):
            asking.request("traced", b"bad")
        assert asyncio.run(ask()) == [b"3", b"4"]
    assert "a tracer failed" in caplog.text
    assert "the client's thread failed" not in caplog.text


async def test_a_call_that_is_never_sent_ends_its_span(nodes: Pair, collector: Collector) -> None:
    async with AsyncHAClient(nodes.endpoints, timeout=WAIT_S, outstanding_max=1) as asking:
        tracing.instrument(asking, tracer_provider=collector.provider)
        sent = asking.begin("nobody", b"")
        await asyncio.sleep(0)
        for kind in ("waiting", "not begun"):
            waiting = asking.begin(kind, b"")
            if kind == "waiting":
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert [attribute(each, "bstar.abandoned") for each in collector.named(f"request {kind}")] == [
                True
            ]
        sent.cancel()
    with client(nodes, collector) as asking, pytest.raises(TypeError):
        asking.request("refused", b"", on_progress=7)  # type: ignore[call-overload]
    names = [span.name for span in collector.spans]
    assert names == ["request nobody", "request waiting", "request not begun"]


def test_a_call_through_a_failover_is_one_trace() -> None:
    """docs/tracing.md shows the trace that this test sees."""
    collector, began, again = Collector(), threading.Event(), threading.Event()

    def slow(request: Request) -> bytes:
        if request.is_redelivered:
            again.set()
        else:
            began.set()
            again.wait(WAIT_S)
        return b"sold"

    with pair(workers=0) as p, worker(p, collector, "price", slow, threads=2), client(p, collector) as asking:
        p.primary.wait_for_workers(1)
        caller = threading.Thread(target=asking.request, args=("price", b"apple"))
        caller.start()
        assert began.wait(WAIT_S)
        p.kill_active()
        caller.join(WAIT_S)
        assert not caller.is_alive()
        spans = collector.wait(5)
        endpoints = p.endpoints
    assert len({span.context.trace_id for span in spans}) == 1
    [call], [first, second] = collector.named("request price"), collector.named("process price")
    assert {parent_of(span) for span in spans if span is not call} == {call.context.span_id}
    attempts = attribute(call, "bstar.attempts")
    assert isinstance(attempts, int)
    assert attempts >= 2
    assert attribute(call, "bstar.endpoint") == endpoints[1]
    assert (
        attribute(first, "bstar.epoch") != attribute(second, "bstar.epoch") == attribute(call, "bstar.epoch")
    )
    text = text_of(spans, endpoints)
    assert text in PAGE.read_text(), f"put this into docs/tracing.md:\n{text}"


# What differs from run to run.
_VARYING = re.compile(r"bstar\.(attempts|epoch)|messaging\.message\.id|server\..*")


def text_of(spans: list[ReadableSpan], endpoints: list[str]) -> str:
    """The trace as text: what does not differ from run to run."""
    lines = []
    for span in spans:
        indent = "" if span.parent is None else "  "
        lines.append(f"{indent}{span.name}  {span.kind.name}  {span.status.status_code.name}")
        for name, value in sorted((span.attributes or {}).items()):
            shown = ["primary", "backup"][endpoints.index(str(value))] if name == "bstar.endpoint" else value
            lines.append(f"{indent}    {name} = {'…' if _VARYING.fullmatch(name) else shown}")
    return "\n".join(f"    {line}" for line in lines)
