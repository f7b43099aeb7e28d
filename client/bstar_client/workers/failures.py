"""The error and the log line of a handler that ends without a reply, for both workers.

An exception from a handler, a hook or a reply store ends its own request only, even SystemExit or an
exception without a readable text. So code that calls user code catches everything and makes a text of it
here.
"""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from bstar.base.printable import printable
from bstar.security import Security
from bstar.wire.limits import TEXT_BYTES_MAX
from bstar.wire.messages import Reason
from bstar_client.arguments.declined import frames_of
from bstar_client.core.worker.dialects import Job
from bstar_client.core.worker.outputs import Late
from bstar_client.workers.replies import ReplyStore

_log = logging.getLogger("bstar_client")


_NOT_ALLOWED = Reason.NOT_ALLOWED.name.lower()
# A longer traceback, or one that cannot be made, shrinks to its frames and the start of the text.
_TRACE_CHARS_MAX = 50_000


class _StandIn(Exception):  # noqa: N818 - stands for another exception in a traceback
    """Stands for an exception that cannot be shown."""


def report(service: bytes, job: Job, error: BaseException, what: str = "failed") -> list[bytes]:
    """Log the handler's exception; return the text for the client."""
    text = text_of(error)
    level = logging.WARNING
    if job.is_ended:
        level, what = logging.INFO, "ended after it was given up"
    elif job.is_redelivered:
        what = f"(redelivered) {what}"
    _log_error(level, f"{title_of(service, job)} {what}", text, error)
    return [text.encode("utf-8", "replace")]


def report_plain(identity: bytes, error: BaseException) -> list[bytes]:
    """Log the exception of a handler without a broker; return its reply: ``500`` and the text."""
    text = text_of(error)
    if (declined := frames_of(error)) is not None:
        _log_error(logging.INFO, f"request {identity.hex()} was declined", text, None)
        return [b"500", declined[0]]
    _log_error(logging.WARNING, f"request {identity.hex()} failed", text, error)
    return [b"500", text.encode("utf-8", "replace")]


def note(service: bytes, job: Job, error: BaseException, what: str) -> list[bytes]:
    """Log an exception that is no failure of the handler; return its text."""
    text = text_of(error)
    _log_error(logging.INFO, f"{title_of(service, job)} {what}", text, None)
    return [text.encode("utf-8", "replace")]


def call_on_cancel(service: bytes, job: Job) -> None:
    """Call what the handler of a cancelled request wants to be called, each once."""
    waiting = job.on_cancel
    while waiting:
        try:
            call = waiting.pop(0)
        except IndexError:
            return  # the other thread has taken it
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - whatever it raises ends nothing but itself
            _log_error(logging.WARNING, f"{title_of(service, job)}: on_cancel failed", text_of(error), error)


def leave_child(title: str) -> NoReturn:
    """End the process: a handler has forked, and its child came back out of the handler.

    It has neither the threads nor the connections of its parent, and must not answer in its place. The
    child's ``sys.exit`` counts; anything else is a mistake that is logged.
    """
    error = sys.exception()
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit):
        what = "forked, and its child came back out of the handler: end a child by os._exit()"
        _log_error(logging.ERROR, f"{title} {what}", "returned" if error is None else text_of(error), error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code if isinstance(code, int) else code is not None)


def report_given_up(service: bytes, job: Job, timeout_s: float | None) -> None:
    """Log that a handler exceeded its time."""
    what = f"was given up: its handler did not return within {timeout_s} s"
    _log.error("%s %s", title_of(service, job), what)


def report_lost(endpoint: str, reason: str, service: bytes, security: Security | None) -> None:
    """Log that a session with a node ended."""
    if reason != _NOT_ALLOWED:
        _log.info("the session with %s ended: %s", endpoint, reason)
        return
    _log.warning(
        '%s does not let %s offer service "%s": in its list of principals either "offers" of the key\'s '
        "entry does not match the service, or no entry has the key any more; the node's log says which",
        endpoint,
        "a worker without a key" if security is None else f"key {security.key.name}",
        printable(service),
    )


def warn_unregistered(
    service: bytes, lacks: dict[str, str], registered: Sequence[str], security: Security | None
) -> None:
    """Log which nodes have not registered the worker, and what is at their endpoints.

    ``lacks``: why the last session with each of these nodes ended, if there was one. ``registered``: the
    others. It takes ``endpoint_probe.WAIT_S`` at most.
    """
    from bstar_client.links.endpoint_probe import look  # noqa: PLC0415 - most workers never need it

    found = look(lacks, has_keys=security is not None)
    nodes = "; ".join(
        f"{endpoint}: {found[endpoint] or lack or 'no registration yet'}" for endpoint, lack in lacks.items()
    )
    reach = (
        f"requests reach it through {', '.join(registered)} alone" if registered else "no request reaches it"
    )
    _log.warning('the worker of service "%s" is not registered at %s; %s', printable(service), nodes, reach)


def warn_late(late: Late, service: bytes, handler: Callable[..., object] | None) -> None:
    """Log that the process could not answer in time, and which handler ran meanwhile."""
    name = getattr(handler, "__qualname__", None)
    named = repr(handler) if name is None else f"{getattr(handler, '__module__', '')}.{name}"
    if late.is_busy:
        _log.warning(
            "handler %s of service %s kept the process from answering for %.1f s: it held the GIL or blocked "
            "the event loop; compute in another process",
            named,
            printable(service),
            late.late_s,
        )
    else:
        _log.warning(
            "the worker for %s did not come to answer for %.1f s, and no handler ran: was its process "
            "stopped?",
            printable(service),
            late.late_s,
        )


def text_of(error: BaseException) -> str:
    """The error's type and text, a few kilobytes at most. It works for every error, even if ``str`` fails."""
    name = _name_of(error)
    try:
        # str() may return an object of the handler's own class.
        text = str.__getitem__(str(error), slice(TEXT_BYTES_MAX))
    except BaseException as trouble:
        if is_interrupt(trouble):
            raise
        return f"{name}: (its text cannot be had: {_name_of(trouble)})"
    return f"{name}: {text}" if text else name


def call_hook(hook: Callable[..., object], *arguments: object) -> None:
    """Call one method of an observer. Log what it raises."""
    try:
        hook(*arguments)
    except BaseException as error:
        if is_interrupt(error):
            raise
        name = getattr(hook, "__qualname__", type(hook).__name__)
        _log_error(logging.ERROR, f"a hook failed ({name})", text_of(error), error)


def settle(store: ReplyStore, service: bytes, job: Job, reply: Sequence[bytes] | None) -> None:
    """Give the store the reply to keep, or None. A failure of the store must not hide the reply or the
    request's error.
    """
    try:
        if reply is None:
            store.drop(job.identity)
        else:
            store.keep(job.identity, reply)
    except BaseException as error:
        if is_interrupt(error):
            raise
        what = "stays in the store of replies as one that runs"
        if reply is not None:
            what = "is answered, but its reply could not be kept for repetitions"
        _log_error(logging.ERROR, f"{title_of(service, job)} {what}", text_of(error), error)


def is_interrupt(error: BaseException) -> bool:
    """True if it can be Ctrl-C. Python raises it in the main thread only, in any code."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def title_of(service: bytes, job: Job) -> str:
    """The request in a log line."""
    return f'request {job.identity.hex()} of service "{printable(service)}"'


def _name_of(error: BaseException) -> str:
    # As Python stores it: a metaclass may return something else.
    name: str = type.__dict__["__name__"].__get__(type(error))
    return name


def _log_error(level: int, title: str, text: str, error: BaseException | None) -> None:
    if not _log.isEnabledFor(level):
        return
    try:
        _log.log(level, "%s: %s", title, printable(text), exc_info=error and _to_show(error, text))
    except BaseException as trouble:
        # The program's log handler failed, and logging has reported it if it could. The request goes on.
        if is_interrupt(trouble):
            raise


def _to_show(error: BaseException, text: str) -> BaseException:
    """The error, or a stand-in: to show an error runs user code, also that of its causes."""
    try:
        if sum(map(len, traceback.format_exception(error))) <= _TRACE_CHARS_MAX:
            return error
    except BaseException as trouble:
        if is_interrupt(trouble):
            raise
    return _StandIn(text).with_traceback(error.__traceback__)
