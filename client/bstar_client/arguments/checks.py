"""Checks the arguments of clients and workers.

A value of a wrong type is a TypeError that names the argument. A setting that is out of range is a
ConfigurationError. A bool is not a number here.
"""

import inspect
import logging
import math
import numbers
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, cast, get_args

import zmq

from bstar.errors import CallTimeoutError, ConfigurationError, LocalProtocolError
from bstar.fleet import Endpoints, Fleet
from bstar_client.arguments.settings import Dialect, LinkSettings

# A logger of its own: a program that wants one node alone can silence it.
_log = logging.getLogger("bstar_client.endpoints")

# A longer timeout counts as no limit: system calls refuse times of more than some decades.
_TIMEOUT_S_MAX = 1e9
_InitT = TypeVar("_InitT", bound=Callable[..., None])

_ENDPOINT = re.compile(r"tcp://[^/]+:(?P<port>[0-9]{1,5})|(?:ipc|inproc)://.+")


def to_count(value: object, name: str, low: int, high: int | None = None) -> int:
    """A whole number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is a whole number, not {type(value).__name__}")
    count = int(value)
    if count < low or (high is not None and count > high):
        bounds = f"{low} or more" if high is None else f"{low} to {high}"
        raise ConfigurationError(f"{name} is {bounds}, not {count}")
    return count


def to_seconds(value: object, name: str, *, may_be_zero: bool = False, may_be_endless: bool = False) -> float:
    """A setting in seconds."""
    try:
        seconds = _to_number(value, name)
    except OverflowError:
        raise ConfigurationError(f"{name} is a number of seconds that a float can hold") from None
    is_right = 0 < seconds < math.inf or (may_be_zero and seconds == 0)
    if not is_right and not (may_be_endless and seconds == math.inf):
        bound = "0 or more" if may_be_zero else "above 0"
        raise ConfigurationError(f"{name} is a number of seconds, {bound}, not {seconds}")
    return seconds


def to_seconds_or_none(value: object, name: str) -> float | None:
    """A setting in seconds that may be left out."""
    return None if value is None else to_seconds(value, name)


def to_timeout(value: object) -> float | None:
    """A call's own timeout; None means no limit. CallTimeoutError if it is 0 or less: nothing is sent."""
    if value is None:
        return None
    try:
        seconds = value if type(value) is float else _to_number(value, "timeout")
    except OverflowError:
        raise LocalProtocolError("timeout is a number of seconds that a float can hold, or None") from None
    if seconds > 0:
        return seconds if seconds < _TIMEOUT_S_MAX else None
    if seconds != seconds:  # noqa: PLR0124 - not a number
        raise LocalProtocolError("timeout is a number of seconds or None, not nan")
    text = f"timed out at once, because its timeout is {seconds:g} s; the request was not sent"
    raise CallTimeoutError(text, may_have_executed=False)


def to_milliseconds(value: object, name: str, most: int) -> int:
    """Seconds of a call's argument, 0 or more, as whole milliseconds; a part of one counts as one.

    TypeError if it is no number, LocalProtocolError if it is out of range.
    """
    try:
        seconds = _to_number(value, name)
    except OverflowError:
        seconds = math.inf
    if not 0 <= seconds * 1000 <= most:
        raise LocalProtocolError(f"{name} is 0 to {most // 1000} seconds, not {seconds:g}")
    return math.ceil(seconds * 1000)


def _to_number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is a number of seconds, not {type(value).__name__}")
    return float(value)


def check_flag(value: object, name: str) -> None:
    """True or False; TypeError for anything else."""
    if type(value) is not bool:
        raise TypeError(f"{name} is True or False, not {type(value).__name__}")


def check_function(value: object, name: str) -> None:
    """Anything callable."""
    if not callable(value):
        raise TypeError(f"{name} is a function, not {type(value).__name__}")


def check_on_progress(value: object) -> None:
    """A function that is called and not awaited."""
    check_function(value, "on_progress")
    if is_any(value, inspect.iscoroutinefunction):
        raise TypeError("on_progress is a plain function, not an async one: it is called and not awaited")


def names_its_class(init: _InitT) -> _InitT:
    """Let a constructor refuse an unknown option by the name of the class that the program has written."""
    code = init.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @wraps(init)
    def checked(self: object, *arguments: Any, **options: Any) -> None:
        for name in options:
            if name not in known:
                raise TypeError(
                    f"{type(self).__name__} has no option {name!r}; its options: "
                    f"{', '.join(known[code.co_argcount :])}"
                )
        init(self, *arguments, **options)

    return cast("_InitT", checked)


def check_map(bodies: object, window: object, ordered: object, errors: object) -> int:
    """The arguments that only ``map`` has. Returns the window."""
    if isinstance(bodies, str | bytes | bytearray | memoryview):
        raise TypeError(f"bodies is an iterable of bodies, not a single {type(bodies).__name__}")
    check_flag(ordered, "ordered")
    if errors not in ("raise", "return"):
        raise LocalProtocolError(f"errors is 'raise' or 'return', not {errors!r}")
    try:
        return to_count(window, "a window", 1)
    except ConfigurationError as error:
        raise LocalProtocolError(str(error)) from None


def check_instance(value: object, kind: type, name: str) -> None:
    """None, or an instance of the class."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} is of {kind.__name__}, or None, not {_kind_of(value)}")


def check_shared(
    endpoints: Endpoints,
    pins: Mapping[str, str] | None,
    dialect: object,
    link: object,
    context: object,
    journal: object,
    dialects: Sequence[str] = get_args(Dialect),
) -> Fleet:
    """Check the arguments that clients and workers share. Returns the fleet.

    ``dialects`` are those that it may speak.
    """
    check_instance(link, LinkSettings, "link")
    check_instance(context, zmq.Context, "context")
    # Sockets of such a context return futures.
    other = sys.modules.get("zmq.asyncio")
    if other is not None and isinstance(context, other.Context):
        raise TypeError("context is a zmq.Context, not a zmq.asyncio.Context: pass zmq.Context(context)")
    if journal is not None and not isinstance(journal, str | os.PathLike):
        from bstar_client.journal import JournalSettings  # noqa: PLC0415 - most programs keep none

        if not isinstance(journal, JournalSettings):
            raise TypeError(f"journal is a directory, JournalSettings or None, not {type(journal).__name__}")
    if dialect not in dialects:
        raise ConfigurationError(f"dialect is one of {', '.join(map(repr, dialects))}, not {dialect!r}")
    fleet = Fleet.of(endpoints, pins)
    for endpoint in fleet.endpoints:
        # Connecting, which comes later, would fail.
        match = _ENDPOINT.fullmatch(endpoint)
        if match is None:
            raise ConfigurationError(
                f"cannot connect to {endpoint!r}: write tcp://ADDRESS:PORT or ipc://PATH"
            )
        if match["port"] is not None and not 1 <= int(match["port"]) <= 65_535:
            raise ConfigurationError(f"cannot connect to {endpoint!r}: its port is 1 to 65535")
    return fleet


def warn_of_lone_nodes(fleet: Fleet, owner: object) -> None:
    """Log that a pair has not two endpoints: with one nothing stands by, and no third node exists."""
    for pair in fleet.pairs:
        count, name = len(pair.endpoints), type(owner).__name__
        if count == 1:
            _log.warning(
                "%s has one endpoint, %s: when that node is down no other one is asked; name both nodes of "
                "the pair",
                name,
                pair.endpoints[0],
            )
        elif count > 2:
            _log.warning(
                "%s has %d endpoints in one list, %s, and a pair has two: several pairs are a list of lists "
                "(docs/fleet.md)",
                name,
                count,
                ", ".join(pair.endpoints),
            )


def check_store(value: object) -> None:
    """None, or a store of replies."""
    methods = [getattr(value, name, None) for name in ("begin", "keep", "drop")]
    if value is not None and (isinstance(value, type) or not all(map(callable, methods))):
        raise TypeError(f"dedupe is a store of replies, as ReplyMemory() is, not {_kind_of(value)}")


def _kind_of(value: object) -> str:
    return f"{value.__name__} itself" if isinstance(value, type) else type(value).__name__


# --- handlers -----------------------------------------------------------------------------------------------


def check_handler(handler: object) -> None:
    """TypeError if ``Worker`` cannot call it, whatever its arguments."""
    _check_call(handler)
    if is_any(handler, inspect.iscoroutinefunction) or is_any(handler, inspect.isasyncgenfunction):
        raise TypeError(f"the handler {name_of_handler(handler)} is async: AsyncWorker takes it")


def check_async_handler(handler: object) -> None:
    """TypeError if ``AsyncWorker`` cannot call it, whatever its arguments."""
    _check_call(handler)
    if is_any(handler, inspect.isgeneratorfunction):
        raise TypeError(f"the handler {name_of_handler(handler)} is a plain generator: Worker takes it")


def _check_call(handler: object) -> None:
    if not callable(handler):
        raise TypeError(f"the handler is a function that takes a Request, not {type(handler).__name__}")


def check_arguments(handler: Callable[..., object], *arguments: None) -> None:
    """TypeError if the handler cannot be called with so many arguments."""
    try:
        inspect.signature(handler).bind(*arguments)
    except ValueError:
        pass  # it has no signature to check
    except TypeError as error:
        raise TypeError(
            f"the handler {name_of_handler(handler)} gets one argument, the request or a typed body, and a "
            f"second one if that is annotated as Request: {error}"
        ) from None


def is_any(handler: object, is_kind: Callable[[Any], bool]) -> bool:
    """True for such a function, its partial or method, or an object whose ``__call__`` is one."""
    while isinstance(handler, partial):
        handler = handler.func
    return is_kind(handler) or is_kind(getattr(type(handler), "__call__", None))  # noqa: B004


def name_of_handler(handler: object) -> str:
    """Its name, that of what a partial calls."""
    while isinstance(handler, partial):
        handler = handler.func
    return str(getattr(handler, "__qualname__", type(handler).__qualname__))
