"""Frames of bodies on the command line: read from its arguments, and printed to people, files and scripts."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer

from bstar.base.printable import lines
from bstar.base.undecodable import UNDECODABLE
from bstar.errors import ConfigurationError

BODY_HELP = (
    "One frame each: a text, - for standard input, @FILE for a file, @@text for @text. "
    "None is one empty frame."
)


def frames_of(texts: Sequence[str] | None) -> list[bytes]:
    """The frames that the arguments name. ConfigurationError for what cannot be read."""
    return [_frame(text) for text in texts or ()] or [b""]


def print_frames(frames: Sequence[bytes], *, is_raw: bool, is_alone: bool) -> None:
    """Print a reply's frames; ``is_alone``: nothing else is printed beside them.

    A terminal gets each frame on a line, JSON with indents, with what it would obey as escapes. A file gets a
    single frame as the bytes that it is, of several each on a line. ``is_raw``: nothing but the bytes,
    everywhere.
    """
    if is_raw or (is_alone and len(frames) == 1 and not sys.stdout.isatty()):
        _write(b"".join(frames))
    elif sys.stdout.isatty():
        for frame in frames:
            typer.echo(lines(_indented(frame)))
    else:
        _write(b"".join(frame + b"\n" for frame in frames))


def _indented(frame: bytes) -> bytes:
    """The frame; if it is an object or array of JSON, with indents."""
    if frame[:1] not in (b"{", b"["):
        return frame
    try:
        msgspec.json.decode(frame)
    except UNDECODABLE:
        return frame
    return msgspec.json.format(frame, indent=2)


def _frame(text: str) -> bytes:
    if text == "-":
        try:
            return sys.stdin.buffer.read()
        except (OSError, AttributeError) as error:  # None if it was closed from the start
            raise ConfigurationError("-: standard input is closed or cannot be read") from error
    if text.startswith("@@"):
        return text[1:].encode("utf-8", "surrogateescape")
    if text.startswith("@"):
        try:
            return Path(text[1:]).read_bytes()
        except OSError as error:
            raise ConfigurationError(f"{text}: cannot be read: {error.strerror or error}") from error
    return text.encode("utf-8", "surrogateescape")


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
