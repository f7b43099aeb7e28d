"""The control socket of a node: who may give it orders (``orders``), and where.

The node listens on a socket in the file system, in a folder that only its own user may enter. That user can
kill the process anyway. Over the network only keys give orders (``network_orders``). A message is a
word and a JSON object, an answer is a JSON object.
"""

import logging
import os
import socket as socket_module
from collections.abc import Callable
from contextlib import suppress
from errno import ENOENT
from hashlib import blake2b
from pathlib import Path
from stat import S_IMODE

import zmq

from bstar.net.reactor import Reactor
from bstar.net.sockets import send
from bstar.settings import Settings

_log = logging.getLogger("bstar_broker.control")

_MODE = 0o700
# A node of the same user may end at this moment and remove the folder, once.
_ATTEMPTS = 3


# systemd gives the unit of a node a /tmp of its own, and this folder (``bstar systemd-unit``).
RUNTIME_FOLDER = Path("/run/bstar-node")


def control_path(settings: Settings) -> Path:
    """Where the node with these settings listens, if it runs in this environment and as this user."""
    endpoints = settings.endpoints
    name = f"{settings.pair}\n{settings.role}\n{endpoints.clients}\n{endpoints.state}"
    given = os.environ.get("RUNTIME_DIRECTORY")
    folder = Path(given.partition(":")[0]) if given else temporary_folder() / f"bstar-{os.getuid()}"
    return folder / blake2b(name.encode(), digest_size=8).hexdigest()


def temporary_folder() -> Path:
    """The folder for temporary files. It need not be writable: node and operator mean the same one.

    ``tempfile.gettempdir`` chooses another folder when the disk is full or read-only.
    """
    named = os.environ.get("TMPDIR")
    return Path(named).absolute() if named and Path(named).is_dir() else Path("/tmp")  # noqa: S108


def find_control(settings: Settings) -> Path:
    """Where an operator reaches this node: as ``control_path``, or where its unit lets it listen."""
    path = control_path(settings)
    of_unit = RUNTIME_FOLDER / path.name
    return path if is_listening(path) or not is_listening(of_unit) else of_unit


def is_listening(path: Path) -> bool:
    """True if a process listens at this socket and this user may ask it."""
    with socket_module.socket(socket_module.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


class ControlSocket:
    """Answers each message with the result of ``answer``. A node that cannot listen logs it and goes on."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        reactor: Reactor,
        path: Path,
        answer: Callable[[bytes, bytes], bytes],
    ) -> None:
        self._answer = answer
        self._path = path
        self._socket: zmq.Socket[bytes] | None = None
        try:
            self._socket = _listen(context, path)
        except (OSError, zmq.ZMQError) as error:
            _log.warning("no order reaches this node: cannot listen at %s: %s", path, error)
            return
        reactor.add_reader(self._socket, self._on_request)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._path.unlink(missing_ok=True)
            with suppress(OSError):  # others of this user listen there
                self._path.parent.rmdir()

    def _on_request(self, frames: list[bytes], now: float) -> None:
        socket = self._socket
        if socket is None:
            return
        word, argument = (*frames[1:3], b"", b"")[:2]
        send(socket, [frames[0], self._answer(word, argument)])


def _listen(context: "zmq.Context[zmq.Socket[bytes]]", path: Path) -> "zmq.Socket[bytes]":
    """A socket that listens at ``path``. OSError or ZMQError if it cannot."""
    for attempt in range(_ATTEMPTS):
        _make_private(path.parent)
        socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        try:
            socket.bind(f"ipc://{path}")
        except zmq.ZMQError as error:
            socket.close()
            if error.errno != ENOENT or attempt == _ATTEMPTS - 1:
                raise
        else:
            return socket
    raise AssertionError("the last attempt returns or raises")


def _make_private(folder: Path) -> None:
    """Make the folder private to this user. OSError if another user owns it."""
    folder.mkdir(mode=_MODE, parents=True, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or S_IMODE(status.st_mode) & 0o077 or not folder.is_dir():
        raise PermissionError(f"{folder} must be a directory of this user with mode {_MODE:o}")
