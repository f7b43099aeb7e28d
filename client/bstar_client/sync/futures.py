"""The future of a call that a thread has begun and does not wait for."""

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from bstar.errors import BstarError, NoActiveNodeError
from bstar_client.core.calls import Call, Outcome, Reply

T = TypeVar("T")


class Loop(Protocol):
    """The loop of a future's client. ``unawaited`` has the futures without an outcome."""

    unawaited: "set[CallFuture[Any]]"

    def check_may_wait(self) -> None:
        """LocalProtocolError if this thread would wait for itself."""


class CallFuture(Future[T]):
    """The future of a reply. ``wait``, ``as_completed`` and ``asyncio.wrap_future`` take it.

    ``result()`` returns what ``request`` returns, or raises what it raises. ``cancel()`` gives the call up
    and cancels the request, also at its worker; False if it has ended. Callbacks run in a thread of the
    client's: they may begin calls, and must not wait for the client (LocalProtocolError).
    """

    # It is the call's sink as well (``calls.delivery``).

    def __init__(
        self, loop: "Loop", give_up: Callable[[Call], None], explain: Callable[[NoActiveNodeError], None]
    ) -> None:
        super().__init__()
        self.call: Call | None = None
        # Makes the result of the reply.
        self.read: Callable[[Reply], T]
        self._loop = loop
        self._give_up = give_up
        self._explain = explain

    def cancel(self) -> bool:
        """Give the call up. False if it has ended."""
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        self._loop.unawaited.discard(self)
        call, self.call = self.call, None
        if call is not None:
            self._give_up(call)
        return True

    def result(self, timeout: float | None = None) -> T:
        """The reply, within ``timeout`` seconds or TimeoutError."""
        self._check_may_wait()
        try:
            return super().result(timeout)
        except NoActiveNodeError as error:
            explain, self._explain = self._explain, _explained
            explain(error)
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None, within ``timeout`` seconds or TimeoutError."""
        self._check_may_wait()
        return super().exception(timeout)

    def _check_may_wait(self) -> None:
        if not self.done():
            self._loop.check_may_wait()

    def put(self, outcomes: tuple[Outcome, ...]) -> None:
        """The call has ended."""
        [(_, outcome)] = outcomes
        self._loop.unawaited.discard(self)
        self.call = None
        with suppress(InvalidStateError):  # it was cancelled
            if isinstance(outcome, BstarError):
                self.set_exception(outcome)
                return
            try:
                result = self.read(outcome)
            except Exception as error:  # noqa: BLE001 - a type's own code may raise anything; it is the caller's
                self.set_exception(error)
            else:
                self.set_result(result)


def _explained(_: NoActiveNodeError) -> None:
    """Its text says already what is at the endpoints."""
