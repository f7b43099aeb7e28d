"""A job manager's child process: runs one job after the other, until its parent is gone.

``main`` gets the descriptor of a stream socket whose other end the parent has. Each message on it has 4
bytes of length, big-endian, and so many bytes:

    parent → child    first: JSON, ``Setup``; then the JSON job of each request (``bstar.wire.emq_jobs.Job``)
    child → parent    first: nothing, it is ready; then the JSON result of each job

It calls what a module of the allow list defines, and nothing else, whatever a job names. An exception is a
result like any other: its text (PROTOCOLS.md 12.3).
"""

import contextlib
import importlib
import inspect
import socket
from typing import Any

import msgspec

from bstar.errors import BstarError, RemoteProtocolError
from bstar.wire.emq_jobs import Job, decode_job, encode_result
from bstar.wire.limits import MESSAGE_BYTES_MAX

LENGTH_BYTES = 4


class Setup(msgspec.Struct, frozen=True):
    """``allow``: the modules whose functions and classes may be called."""

    allow: tuple[str, ...]


class JobRefusedError(BstarError):
    """A job names something that this job manager does not call."""


def framed(message: bytes) -> bytes:
    """A message as the stream has it."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def check_path(job: Job, allow: tuple[str, ...]) -> None:
    """JobRefusedError unless the job's module is one of ``allow``. Imports nothing."""
    module = job.path.partition(":")[0]
    if module not in allow:
        raise JobRefusedError(f"refused: this job manager does not allow module {module!r} (--allow)")


def run_job(message: bytes, allow: tuple[str, ...]) -> bytes:
    """The result of a job, whatever happens in it."""
    try:
        job = decode_job(message)
        check_path(job, allow)
        value = _find(job, allow)(*job.args, **job.kwargs)
        result = encode_result(value)
    except (JobRefusedError, RemoteProtocolError) as error:
        return encode_result(str(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the job's own, and its text the result
        return encode_result(_text_of(error))
    if len(result) > MESSAGE_BYTES_MAX:
        return encode_result(f"refused: the result has more than {MESSAGE_BYTES_MAX} bytes")
    return result


def _text_of(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - __str__ is the job's own, too
        return type(error).__name__


def _find(job: Job, allow: tuple[str, ...]) -> Any:  # Any: whatever the module has
    """The callable that the job names, of an object of its class if it names one."""
    module_name, _, class_name = job.path.partition(":")
    module = importlib.import_module(module_name)
    if not class_name:
        return _defined(module, job.callable, allow)
    kind = _defined(module, class_name, allow)
    if not inspect.isclass(kind):
        raise JobRefusedError(f"refused: {job.path!r} is no class")
    _check_public(job.callable)
    # The class first: a method that is not there costs no object.
    getattr(kind, job.callable)
    return getattr(kind(*job.class_args, **job.class_kwargs), job.callable)


def _defined(module: Any, name: str, allow: tuple[str, ...]) -> Any:  # Any: whatever the module has
    _check_public(name)
    found = getattr(module, name)
    # What a module imports from elsewhere is not its own: it may be os.system.
    home = getattr(found, "__module__", None)
    if home not in allow or not callable(found):
        where = f"{name!r} of {module.__name__}"
        raise JobRefusedError(f"refused: {where} is no function or class of an allowed module but of {home}")
    return found


def _check_public(name: str) -> None:
    if name.startswith("_"):
        raise JobRefusedError(f"refused: {name!r} is private")


def _read(stream: socket.socket) -> bytes:
    """The next message; EOFError if the parent is gone."""
    return _exactly(stream, int.from_bytes(_exactly(stream, LENGTH_BYTES), "big"))


def _exactly(stream: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = stream.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def main(descriptor: int) -> None:
    """Serve the parent until it closes its end."""
    with socket.socket(fileno=descriptor) as stream, contextlib.suppress(EOFError, ConnectionError):
        setup = msgspec.json.decode(_read(stream), type=Setup)
        stream.sendall(framed(b""))
        while True:
            stream.sendall(framed(run_job(_read(stream), setup.allow)))
