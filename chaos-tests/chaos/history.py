"""What happened, as JSON lines: one file per process, one line per event, in the order of the process.

Times are of CLOCK_MONOTONIC, which all processes of a machine share. A line is written with one system call,
so a killed process leaves whole lines, or at worst a last one that is cut short; ``read`` forgives that one
and no other.

Four kinds of writers: clients (``Invoke``, ``Ok``, ``Failed``, ``ClientSaw``), clients of the durable store
(``Asked``, ``Told``), workers (``Registered``, ``Lost``, ``EpochSeen``, ``Begin``, ``End``, ``Refused``) and
the harness (``Note``: what it started and broke).
"""

from __future__ import annotations

import enum
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

PAIR = "chaos"
"""What every run's pair is called."""

KEPT_WAITING = "kept waiting"
"""A note of this kind says in its text for how many seconds the machine kept a process from running."""


class _Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    at: float
    """When, in seconds of the monotonic clock."""


class Started(_Line, frozen=True, tag="started"):
    """A client or worker process is about to connect."""

    name: str
    pid: int
    endpoints: tuple[str, ...]


class Stopped(_Line, frozen=True, tag="stopped"):
    """It ended in good order."""


class Invoke(_Line, frozen=True, tag="invoke"):
    """A call begins. ``id`` numbers the calls of this process; bodies are unique in the whole run."""

    id: int
    service: str
    body: str
    is_idempotent: bool
    deadline_s: float


class Ok(_Line, frozen=True, tag="ok"):
    """A call was answered."""

    id: int
    reply: str
    epoch: int
    endpoint: str
    attempts: int


class Failed(_Line, frozen=True, tag="error"):
    """A call ended with an error. ``may_have_executed`` is what the caller was told."""

    id: int
    error: str
    may_have_executed: bool
    text: str


class ClientSaw(_Line, frozen=True, tag="saw"):
    """An event of the client library: Connected, Disconnected, ActiveFound, ActiveLost, FailedOver."""

    event: str
    endpoint: str
    text: str


class Registered(_Line, frozen=True, tag="registered"):
    """A node has the worker on its list."""

    endpoint: str


class Lost(_Line, frozen=True, tag="lost"):
    """The worker's session with a node ended."""

    endpoint: str
    reason: str


class EpochSeen(_Line, frozen=True, tag="epoch"):
    """Bytes that name an epoch above all before have reached the worker."""

    epoch: int
    endpoint: str


class Begin(_Line, frozen=True, tag="begin"):
    """The worker begins a request. ``number`` counts its executions, ``identity`` names the request."""

    number: int
    identity: str
    epoch: int
    endpoint: str
    body: str
    is_redelivered: bool


class End(_Line, frozen=True, tag="end"):
    """The handler has returned."""

    number: int


class Refused(_Line, frozen=True, tag="refused"):
    """The worker refused a request of a superseded node."""

    identity: str
    epoch: int
    epoch_seen: int


class Operation(enum.Enum):
    """What a client of the durable store asks for."""

    SUBMIT = "submit"
    RESULT = "result"
    CLOSE = "close"
    CANCEL = "cancel"


class Asked(_Line, frozen=True, tag="asked"):
    """A durable operation begins. ``id`` numbers those of this process; ``body`` names the request."""

    id: int
    operation: Operation
    body: str


class Told(_Line, frozen=True, tag="told"):
    """It has ended. ``outcome``: stored; answer, with it in ``text``; the request's state; or failed."""

    id: int
    outcome: str
    text: str = ""


class Note(_Line, frozen=True, tag="note"):
    """The harness did or saw something: ``what`` happened to ``target``. ``span`` pairs begin and end."""

    what: str
    target: str = ""
    text: str = ""
    span: int = 0


Line = (
    Started
    | Stopped
    | Invoke
    | Ok
    | Failed
    | ClientSaw
    | Registered
    | Lost
    | EpochSeen
    | Begin
    | End
    | Refused
    | Asked
    | Told
    | Note
)

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Line)


class Writer:
    """Appends lines to a file; any thread may write. Each line is out of the process when ``write`` returns.

    Lines stand in the order of their times: the clock is read under the lock that orders them.
    """

    def __init__(self, path: Path) -> None:
        _mend(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._is_closed = False

    def write(self, line: Line) -> float:
        """Write a line, at the present moment whatever its ``at`` says; returns that moment."""
        with self._lock:
            at = time.monotonic()
            octets = _encode(msgspec.structs.replace(line, at=at)) + b"\n"
            if os.write(self._file, octets) != len(octets):
                raise OSError("a line of the history could not be written whole")
        return at

    def note(self, what: str, target: str = "", text: str = "", span: int = 0) -> float:
        """Write down what the harness does; returns the moment."""
        return self.write(Note(at=0.0, what=what, target=target, text=text, span=span))

    def close(self) -> None:
        """Write nothing more. Idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _mend(path: Path) -> None:
    """Cut off the line in which an earlier run of the process was killed, so that the next starts anew."""
    if path.exists():
        whole, newline, _ = path.read_bytes().rpartition(b"\n")
        os.truncate(path, len(whole) + len(newline))


class Tail:
    """Reads a growing history: ``more()`` returns the whole lines that have come since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def more(self) -> list[Line]:
        """What is new; nothing if the file is not there yet."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                octets = file.read()
        except FileNotFoundError:
            return []
        whole, newline, _ = octets.rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [_decoder.decode(line) for line in whole.splitlines()]


def read(path: Path) -> list[Line]:
    """All lines of a history. A last line without an end is dropped; anything else unreadable is an error."""
    return Tail(path).more()
