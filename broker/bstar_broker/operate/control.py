"""The control socket of a node: an operator on the same machine may let a lone backup serve (``promote``),
and let the durable store go on from this node's copy (``bstar store force``).

A request over the network must not do this, because every client could send it. The node listens on a socket
in the file system, in a folder that only its own user may enter. That user can kill the process anyway.
Requests and answers are one frame of text. A question comes first and changes nothing. Then comes the
request, with the reason why the primary counts as dead. A request with an argument has a second frame
(``bstar_broker.operate.operations``).
"""

import logging
import os
import socket as socket_module
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from errno import ENOENT
from hashlib import blake2b
from pathlib import Path
from stat import S_IMODE
from typing import Final, Protocol

import zmq

from bstar.net.reactor import Reactor
from bstar.net.sockets import send
from bstar.settings import Settings

QUESTION: Final = b"may it be promoted"
PROMOTE: Final = b"promote"
FORCE: Final = b"promote by force"
FORCE_STORE: Final = b"lead the store by force"
# The answers; any other text says why not.
SERVES: Final = "serves"
CLAIMING: Final = "claiming"
MAY: Final = "may"
LEADS: Final = "leads"
UNHEARD_OF: Final = "this node knows no such request"

_WHY: Final = {
    PROMOTE: "bstar promote: the primary's state endpoint refuses connections, so no process listens there",
    FORCE: "bstar promote --force: the operator alone says that the primary does not run",
}

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
    folder = Path(given.partition(":")[0]) if given else Path(tempfile.gettempdir(), f"bstar-{os.getuid()}")
    return folder / blake2b(name.encode(), digest_size=8).hexdigest()


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


class Promote(Protocol):
    """``PairShell.promote``."""

    def __call__(self, *, is_trial: bool) -> str | None:
        """None if the node serves, "" if it may be promoted, or the reason why not."""


class ControlSocket:
    """Answers requests with the results of ``promote`` and ``force_store``, which returns why not, or "".
    ``operations`` answers further ones by their first frame, with the second.

    A node that cannot listen logs it and goes on.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        reactor: Reactor,
        path: Path,
        promote: Promote,
        force_store: Callable[[], str],
        operations: Mapping[bytes, Callable[[bytes], str]] | None = None,
    ) -> None:
        self._operations = operations or {}
        self._promote = promote
        self._force_store = force_store
        self._path = path
        self._has_told = False
        self._socket: zmq.Socket[bytes] | None = None
        try:
            self._socket = _listen(context, path)
        except (OSError, zmq.ZMQError) as error:
            _log.warning("bstar promote will not reach this node: cannot listen at %s: %s", path, error)
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
        request, argument = (*frames[1:3], b"", b"")[:2]
        send(socket, [frames[0], self._answer(request, argument).encode()])

    def _answer(self, request: bytes, argument: bytes = b"") -> str:
        if request in self._operations:
            return self._operations[request](argument)
        if request == QUESTION:
            self._has_told = False
            refusal = self._promote(is_trial=True)
            return SERVES if refusal is None else refusal or MAY
        if request == FORCE_STORE:
            return self._force_store() or LEADS
        if request not in _WHY:
            return UNHEARD_OF
        refusal = self._promote(is_trial=False)
        # The client repeats its request while the node claims the majority.
        if not refusal and not self._has_told:
            self._has_told = True
            _log.info("%s", _WHY[request])
        return SERVES if refusal is None else refusal or CLAIMING


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
