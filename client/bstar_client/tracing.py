"""Traces for OpenTelemetry: a span for each call, for its wait and for its handler, in one trace.

    from bstar_client import HAClient, Worker, tracing

    tracing.instrument(client)
    Worker(NODES, "price", price, hooks=tracing.SpanHooks()).run()

The trace context travels in the headers of a request, by the propagators of the program (W3C unless it sets
others). A call keeps its context through failover and redelivery, so each execution is a span of one trace.
Names and attributes follow the semantic conventions for messaging. docs/tracing.md shows a trace. The package
opentelemetry-api is needed here, and nowhere else in ``bstar_client``.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any, Protocol

try:
    from opentelemetry import propagate
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.trace import (
        Span,
        SpanKind,
        Status,
        StatusCode,
        Tracer,
        TracerProvider,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
except ModuleNotFoundError as error:
    text = "traces need opentelemetry-api, which is not installed: pip install '.[otel]' in a clone of bstar"
    raise ModuleNotFoundError(text, name=error.name) from error

from bstar.base.printable import printable
from bstar.errors import BstarError, DeclinedError
from bstar_client.arguments.declined import Declined
from bstar_client.core.calls import Call, CallTracer, Reply
from bstar_client.workers.failures import text_of
from bstar_client.workers.handlers import Request, WorkerHooks

__all__ = ["SpanHooks", "TraceFilter", "instrument"]

_SYSTEM = "bstar"
_DECLINED = "bstar.declined"
_CANCELLED = "bstar.cancelled"


class TracedClient(Protocol):
    """An HAClient or an AsyncHAClient."""

    def trace(self, tracer: CallTracer) -> None:
        """Report each call to it from now on."""


def instrument(client: TracedClient, *, tracer_provider: TracerProvider | None = None) -> None:
    """Make a span for each call of this HAClient or AsyncHAClient from now on.

    It begins with the call and ends with its outcome; its parent is the span that is current then. A request
    carries its context in its headers. Without ``tracer_provider``: that of the program.
    """
    client.trace(_CallSpans(get_tracer("bstar_client", tracer_provider=tracer_provider)))


class _CallSpans:
    """The spans of one client's calls; see ``CallTracer``."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(self, call: Call, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The call begins; returns the headers that its request carries."""
        service = printable(call.service)
        attributes = _attributes("request", service) | {
            "messaging.operation.type": "send",
            "messaging.message.body.size": call.bytes_in,
        }
        # Its context is that in which the message was created: by the conventions it is a producer.
        span = self._tracer.start_span(f"request {service}", kind=SpanKind.PRODUCER, attributes=attributes)
        call.trace = span
        carrier = dict(headers)
        propagate.inject(carrier, set_span_in_context(span))
        return carrier

    def carried(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The headers with the caller's span: a durable request outlives the call that stores it."""
        carrier = dict(headers)
        propagate.inject(carrier)
        return carrier

    def replied(self, call: Call, reply: Reply) -> None:
        """The call was answered."""
        span: Span = call.trace
        span.set_attributes({"bstar.epoch": reply.epoch, "bstar.endpoint": reply.endpoint})
        host, _, port = reply.endpoint.removeprefix("tcp://").rpartition(":")
        if port.isdecimal():
            span.set_attributes({"server.address": host.strip("[]"), "server.port": int(port)})
        _end(call)

    def failed(self, call: Call, error: BstarError) -> None:
        """The call ended with an error."""
        if isinstance(error, DeclinedError):
            call.trace.set_attribute(_DECLINED, error.code)
        else:
            _note_error(call.trace, error)
        _end(call)

    def abandoned(self, call: Call) -> None:
        """Its caller has gone: it was cancelled, or left its stream early."""
        call.trace.set_attribute("bstar.abandoned", True)
        _end(call)


class SpanHooks(WorkerHooks):
    """Makes spans of a worker's requests: ``wait``, then ``process``, which is current in the handler.

    Pass it as ``hooks`` of Worker or AsyncWorker. ``hooks``: your own, which it calls. Without
    ``tracer_provider``: that of the program.

    ``wait`` is the time from when the node that dispatched the request accepted it until its handler is
    called: measured by that node's clock, then by this process's, the way between them left out. It is there
    if the request has headers and came from a node that tells it.
    """

    def __init__(
        self, hooks: WorkerHooks | None = None, *, tracer_provider: TracerProvider | None = None
    ) -> None:
        self._tracer = get_tracer("bstar_client", tracer_provider=tracer_provider)
        self._hooks = hooks or WorkerHooks()
        # The span of each request at its handler, and what undoes its being current.
        self._open: dict[int, tuple[Span, Any]] = {}

    def registered(self, worker: Any, endpoint: str) -> None:
        """A node has registered the worker."""
        self._hooks.registered(worker, endpoint)

    def lost(self, worker: Any, endpoint: str, reason: str) -> None:
        """The session with a node ended."""
        self._hooks.lost(worker, endpoint, reason)

    def request_started(self, worker: Any, request: Request) -> None:
        """Begin the handler's span, and make it current."""
        service = printable(request.service)
        parent = propagate.extract(request.headers)
        self._wait(request, service, parent)
        attributes = _attributes("process", service) | {
            "messaging.operation.type": "process",
            "messaging.message.id": request.identity.hex(),
            "messaging.message.body.size": sum(map(len, request.frames)),
            "bstar.epoch": request.epoch,
            "bstar.redelivered": request.is_redelivered,
        }
        span = self._tracer.start_span(
            f"process {service}", parent, kind=SpanKind.CONSUMER, attributes=attributes
        )
        self._open[id(request)] = span, attach(set_span_in_context(span, parent))
        self._hooks.request_started(worker, request)

    def _wait(self, request: Request, service: str, parent: Context) -> None:
        if request.accepted_at is None:
            return
        now_ns = time.time_ns()
        waited_ns = max(0, int((time.monotonic() - request.accepted_at) * 1e9))
        attributes = _attributes("wait", service) | {"bstar.redelivered": request.is_redelivered}
        span = self._tracer.start_span(
            f"wait {service}", parent, attributes=attributes, start_time=now_ns - waited_ns
        )
        span.end(now_ns)

    def request_finished(self, worker: Any, request: Request) -> None:
        """End the handler's span."""
        try:
            self._hooks.request_finished(worker, request)
        finally:
            self._end(request, None)

    def request_declined(self, worker: Any, request: Request, declined: Declined) -> None:
        """End the handler's span with its code."""
        try:
            self._hooks.request_declined(worker, request, declined)
        finally:
            self._open[id(request)][0].set_attribute(_DECLINED, declined.code)
            self._end(request, None)

    def request_failed(self, worker: Any, request: Request, error: BaseException) -> None:
        """End the handler's span with its error."""
        try:
            self._hooks.request_failed(worker, request, error)
        finally:
            self._end(request, error)

    def request_cancelled(self, worker: Any, request: Request, error: BaseException) -> None:
        """End the handler's span, which says so. It is no error: its caller gave it up."""
        try:
            self._hooks.request_cancelled(worker, request, error)
        finally:
            self._open[id(request)][0].set_attribute(_CANCELLED, True)
            self._end(request, None)

    def _end(self, request: Request, error: BaseException | None) -> None:
        span, token = self._open.pop(id(request))
        if error is not None:
            _note_error(span, error)
        detach(token)
        span.end()

    def request_replayed(self, worker: Any, request: Request) -> None:
        """A repetition got the kept reply: there was no execution, so there is no span."""
        self._hooks.request_replayed(worker, request)

    def handler_stuck(self, worker: Any, identity: bytes) -> None:
        """A handler was given up. Its span ends when it returns."""
        self._hooks.handler_stuck(worker, identity)


class TraceFilter(logging.Filter):
    """Gives each log record ``trace_id`` and ``span_id`` of the current span, or empty.

        handler.addFilter(tracing.TraceFilter())
        handler.setFormatter(logging.Formatter("%(levelname)s %(trace_id)s %(message)s"))

    Add it to a handler: a filter of a logger does not see the records of the loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Every record passes."""
        context = get_current_span().get_span_context()
        record.trace_id = f"{context.trace_id:032x}" if context.is_valid else ""
        record.span_id = f"{context.span_id:016x}" if context.is_valid else ""
        return True


def _attributes(operation: str, service: str) -> dict[str, Any]:
    return {
        "messaging.system": _SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": service,
    }


def _note_error(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, text_of(error)))


def _end(call: Call) -> None:
    span: Span = call.trace
    call.trace = None
    if call.identity:
        span.set_attribute("messaging.message.id", call.identity.hex())
    span.set_attribute("bstar.attempts", call.attempts)
    span.end()
