"""The EventMQ client: DEALER sockets in a thread of its own around the pure ``EmqCalls``."""

import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from bstar.base.closing import Closing
from bstar.errors import (
    CallTimeoutError,
    ClosedError,
    ForkedError,
    LocalProtocolError,
    NoActiveNodeError,
    OutcomeUnknownError,
    RefusedError,
)
from bstar.net.reactor import Reactor
from bstar.security import Security
from bstar.wire import emq
from bstar.wire.emq import Wire, queue_trouble
from bstar.wire.emq_jobs import NO_HEADERS, Headers, Job, decode_result, encode_job
from bstar_client.arguments.checks import to_seconds
from bstar_client.core.emq.calls import CallOutput, CallSettings, EmqCalls, Failed, Pending, Result, Sent
from bstar_client.emq.link import RouterLink
from bstar_client.emq.sockets import checked_endpoints, checked_wire, new_id

# What was sent just before the end leaves within this time.
_LINGER_MS = 1_000
# A passive node says KBYE at once. A client that closes listens so long whether its last messages must go on.
_FAREWELL_S = 0.5


class EmqClient(Closing):
    """Sends jobs to EventMQ's routers: ``EmqClient(["tcp://127.0.0.1:47291"]).call("default", job)``.

    ``routers`` are frontends, in the order in which they take turns: those of the two nodes of a pair.
    Threads may share a client; a forked process makes its own. ``timeout_s`` is for calls that name none.
    ``wire`` is that of the routers, ``published`` or ``specification``. Raises ConfigurationError.
    """

    def __init__(
        self,
        routers: Sequence[str],
        *,
        security: Security | None = None,
        timeout_s: float = 30.0,
        timing: CallSettings | None = None,
        wire: str = Wire.PUBLISHED.value,
    ) -> None:
        self._wire = checked_wire(wire)
        settings = msgspec.structs.replace(
            timing or CallSettings(()), routers=checked_endpoints(routers), wire=self._wire
        )
        self._timeout_s = to_seconds(timeout_s, "timeout_s", may_be_zero=True, may_be_endless=True)
        self._reactor = Reactor(stop_timeout_s=_FAREWELL_S)
        self._calls = EmqCalls(settings, new_id)
        self._futures: dict[bytes, Future[bytes]] = {}
        self._is_closed = False
        self._pid = os.getpid()
        self._link = RouterLink(
            self._reactor, self._calls, self._perform, security=security, linger_ms=_LINGER_MS
        )
        self._reactor.on_stop(lambda _: None, lambda _: self._calls.is_quiet)
        now = self._reactor.now()
        self._link.carry_out(self._calls.start(now), now)
        self._thread = threading.Thread(target=self._reactor.run, name="bstar-emq-client", daemon=True)
        self._thread.start()

    # --- what a program asks for --------------------------------------------------------------------------

    def send(
        self,
        queue: str,
        job: Job,
        headers: Headers = NO_HEADERS,
        *,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> str:
        """Send REQUEST; its msgid. It returns when the message went to a connected router.

        NoActiveNodeError if there was none in time. It does not wait for a worker (EMQ-R-08). If the
        connection ends within five seconds, a job that is ``idempotent`` or has ``guarantee`` in its headers
        is sent again; any other one may be lost.
        """
        request = emq.Request(new_id(), _queue(queue), encode_job(job), headers)
        self._ask(request, timeout_s, is_repeatable=idempotent or headers.guarantee)
        return request.msgid.decode()

    def call(
        self,
        queue: str,
        job: Job,
        headers: Headers = NO_HEADERS,
        *,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> Any:
        """Send REQUEST with ``reply-requested``, and return the result's value.

        A node of bstar forwards results; the published router does not, and the call ends with its deadline.
        An exception of the job is a text: the wire has no other form for it. CallTimeoutError: no result in
        time, and the job may have been executed; NoActiveNodeError: it was not. OutcomeUnknownError: the
        connection ended before the result. A job that is ``idempotent`` or has ``guarantee`` in its headers
        is sent to the next router then; it may run twice, with ``guarantee`` on the pair's store it does not.
        """
        headers = msgspec.structs.replace(headers, reply_requested=True)
        request = emq.Request(new_id(), _queue(queue), encode_job(job), headers)
        is_repeatable = idempotent or headers.guarantee
        return decode_result(self._ask(request, timeout_s, is_repeatable=is_repeatable, wants_result=True))

    def schedule(
        self,
        queue: str,
        job: Job,
        headers: Headers = NO_HEADERS,
        *,
        every_s: int | None = None,
        cron: str = "",
        timeout_s: float | None = None,
    ) -> str:
        """Send SCHEDULE: run the job every ``every_s`` seconds, or at the times of ``cron``; its msgid.

        A schedule is known by its job's call: the same call replaces it. LocalProtocolError without interval
        and cron, with both, or on the specification's wire: its SCHEDULE has no room for either.
        """
        if self._wire is Wire.SPECIFICATION:
            raise LocalProtocolError("the specification's SCHEDULE has no times: use the published wire")
        if (every_s is None) == (not cron):
            raise LocalProtocolError("a schedule has an interval or a cron expression: give one of them")
        if every_s is not None and every_s < 0:
            raise LocalProtocolError(f"an interval is 0 s or more, not {every_s}")
        interval_s = emq.NO_INTERVAL if every_s is None else every_s
        message = emq.Schedule(new_id(), _queue(queue), encode_job(job), headers, interval_s, cron)
        return self._deliver(message, timeout_s)

    def unschedule(self, job: Job, *, timeout_s: float | None = None) -> str:
        """Send UNSCHEDULE: end the schedule with this call; the msgid."""
        return self._deliver(emq.Unschedule(new_id(), "default", encode_job(job)), timeout_s)

    def publish(
        self,
        topic: str,
        value: object,
        *,
        confirm: bool = False,
        timeout_s: float | None = None,
        idempotent: bool = False,
    ) -> str:
        """Send PUBLISH with ``value`` as JSON to those who subscribed to the topic; its msgid.

        It returns when the message went to a connected router or pub/sub device; NoActiveNodeError if there
        was none in time. If the connection ends within five seconds, an ``idempotent`` publication is sent
        again, and subscribers may get it twice; any other one may be lost.

        ``confirm``: it returns when the active node of a pair has sent it out, and otherwise raises what
        ``call`` raises, RefusedError if the node does not publish. The published device never confirms.
        """
        text = json.dumps(value, allow_nan=False).encode()
        message = emq.Publish(new_id(), topic.encode(), text, Headers(reply_requested=confirm))
        result = self._ask(message, timeout_s, is_repeatable=idempotent, wants_result=confirm)
        if confirm and (said := decode_result(result)) is not True:
            raise RefusedError(f"the publication was not sent out: {said}")
        return message.msgid.decode()

    @property
    def counts(self) -> Mapping[str, int]:
        """``connections`` tried so far, and ``invalid`` messages of routers."""
        return {"connections": self._calls.connections, "invalid": self._calls.invalid}

    def close(self) -> None:
        """End the thread, free the socket; what waits ends with ClosedError. Idempotent.

        It takes half a second if messages were sent and no REPLY came: the router may say KBYE to them.
        """
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        self._reactor.stop()
        self._thread.join()
        self._link.close()
        self._reactor.close()
        for future in self._futures.values():
            future.set_exception(ClosedError("the client was closed"))
        self._futures.clear()

    # --- from the caller's thread to the client's ---------------------------------------------------------

    def _deliver(self, message: emq.Message, timeout_s: float | None) -> str:
        # The same SCHEDULE or UNSCHEDULE for a second time changes nothing.
        self._ask(message, timeout_s, is_repeatable=True)
        return message.msgid.decode()

    def _ask(
        self,
        message: emq.Message,
        timeout_s: float | None,
        *,
        is_repeatable: bool,
        wants_result: bool = False,
    ) -> bytes:
        if self._pid != os.getpid():
            # Its thread is in the parent alone: nothing would ever come.
            raise ForkedError("this client was made before fork(): make a new EmqClient in the child process")
        future: Future[bytes] = Future()
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        if math.isnan(limit_s):
            raise LocalProtocolError("timeout_s is a number of seconds, not nan")
        frames = emq.encode(message, wire=self._wire)

        def begin() -> None:
            now = self._reactor.now()
            self._futures[message.msgid] = future
            pending = Pending(message.msgid, frames, now + limit_s, wants_result, is_repeatable)
            self._link.carry_out(self._calls.submit(pending, now), now)

        # ClosedError from here if the client was closed.
        self._reactor.call_threadsafe(begin).result()
        try:
            return future.result()
        except BaseException:
            # Interrupted: what was not sent yet is not sent later.
            if not self._is_closed:
                self._reactor.call_threadsafe(lambda: self._forget(message.msgid))
            raise

    def _forget(self, msgid: bytes) -> None:
        self._futures.pop(msgid, None)
        self._calls.forget(msgid)

    # --- in the client's thread ---------------------------------------------------------------------------

    def _perform(self, output: CallOutput, now: float) -> None:
        match output:
            case Sent(msgid):
                self._end(msgid, b"")
            case Result(msgid, value):
                self._end(msgid, value)
            case Failed():
                self._end(output.msgid, _error(output))

    def _end(self, msgid: bytes, result: bytes | Exception) -> None:
        future = self._futures.pop(msgid, None)
        if future is None:
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)


def _queue(name: str) -> str:
    if (trouble := queue_trouble(name)) is not None:
        raise LocalProtocolError(trouble)
    return name


def _error(failed: Failed) -> Exception:
    if not failed.was_sent:
        return NoActiveNodeError("no router could be reached in time: the message was not sent")
    if failed.is_late:
        text = "no result in time; the job may have been executed. The published router forwards no results"
        return CallTimeoutError(text, may_have_executed=True)
    return OutcomeUnknownError("the connection to the router ended before the result came")
