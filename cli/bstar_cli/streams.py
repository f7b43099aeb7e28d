"""Standard output and standard error that may break: a full disk, a closed descriptor, a reader that left.

Data goes to standard output. If it cannot be written, the command has failed: it ends with a sentence and
an exit code of its own. A reader that has read enough (``head``) is not a failure. The command ends in
silence with 141 then, as programs do that SIGPIPE ends. Talk and logs go to standard error. Their loss
cannot be reported, so the command goes on without them.

Both are replaced for the time of a command, so no command has to think of it. One that writes from a thread
of its own catches ``OutputLostError`` there and ends soon; the error is raised again at the command's end.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

from bstar_cli import exits


class OutputLostError(Exception):
    """Standard output cannot be written; ``code`` is how the command ends."""

    def __init__(self, error: OSError | ValueError) -> None:
        self.is_reader_gone = isinstance(error, OSError) and error.errno == errno.EPIPE
        self.code = exits.READER_GONE if self.is_reader_gone else exits.OUTPUT_LOST
        reason = error.strerror if isinstance(error, OSError) else None
        super().__init__(f"standard output cannot be written: {reason or error}")


def forgive_reader(error: OutputLostError) -> None:
    """Go on although the reader has left: the command's exit code is its verdict. Other errors are raised."""
    if not error.is_reader_gone:
        raise error
    if isinstance(sys.stdout, _Out):
        sys.stdout.lost = None


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Replace both streams for the time of the block, which raises OutputLostError if output is lost.

    What was written is flushed at the end of the block, if it ends without an error.
    """
    _fill_descriptors()
    out, err = sys.stdout, sys.stderr
    sys.stdout = cast("TextIO", _Out(out if out is not None else os.fdopen(1, "w", closefd=False)))
    sys.stderr = cast("TextIO", _Talk(err if err is not None else os.fdopen(2, "w", closefd=False)))
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = out, err


def _fill_descriptors() -> None:
    """Give closed standard descriptors a file that fails, or a socket would get their number."""
    for number, flags in ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, and those below are taken.
            os.open(os.devnull, flags)


class _Stream:
    """Another stream, whose failures to write are turned into something else."""

    def __init__(self, stream: Any, text: "_Stream | None" = None) -> None:
        self._stream = stream
        self._text = self if text is None else text

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._stream, name)
        return type(self)(found, self) if name == "buffer" else found

    def write(self, data: Any) -> int:
        try:
            written: int = self._stream.write(data)
        except (OSError, ValueError) as error:
            self._text.fail(error)
            return len(data)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._text.fail(error)

    def fail(self, error: OSError | ValueError) -> None:
        raise NotImplementedError


class _Out(_Stream):
    """Raises OutputLostError, and again whenever something is written after that."""

    def __init__(self, stream: Any, text: _Stream | None = None) -> None:
        super().__init__(stream, text)
        self.lost: OutputLostError | None = None

    def flush(self) -> None:
        super().flush()
        if self.lost is not None:
            raise self.lost

    def fail(self, error: OSError | ValueError) -> None:
        if isinstance(error, UnicodeError):
            raise error
        self.lost = OutputLostError(error)
        # What is left in the buffer would fail again, at the latest when the interpreter ends.
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
            self._stream.flush()
        raise self.lost from error


class _Talk(_Stream):
    def fail(self, error: OSError | ValueError) -> None:
        """No reader is left."""
