"""Asks a node on this machine through its control socket (``bstar_broker.operate.control``)."""

import getpass
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import zmq

from bstar.settings import Settings

_ANSWER_S: Final = 5.0
# The peer reads 300 characters of name and reason.
REASON_CHARS_MAX: Final = 200


class NobodyError(Exception):
    """No node answered. ``was_sent``: a node may have got the request and carried it out."""

    def __init__(self, text: str, *, was_sent: bool) -> None:
        super().__init__(text)
        self.was_sent = was_sent


@contextmanager
def control_of(settings: Settings) -> Iterator[Callable[..., str]]:
    """A function that asks the node with these settings: a request, and its argument if it has one.

    The function raises NobodyError.
    """
    from bstar_broker.operate import control  # noqa: PLC0415  # only now needed

    path = control.find_control(settings)
    nobody = (
        f"no node answers at {path}: is the {settings.role} running on this machine, with this "
        "configuration and as this user? (Of a systemd unit: as root.)"
    )
    with zmq.Context() as context, context.socket(zmq.DEALER) as node:
        node.linger = 0
        node.connect(f"ipc://{path}")

        def ask(*frames: bytes) -> str:
            if not control.is_listening(path):
                raise NobodyError(nobody, was_sent=False)
            node.send_multipart(frames)
            if not node.poll(int(_ANSWER_S * 1000)):
                raise NobodyError(nobody, was_sent=True)
            return node.recv().decode()

        yield ask


@contextmanager
def node_at(settings: Settings) -> Iterator[Callable[[bytes], str]]:
    """A function that asks the node with these settings. Its answer says if nobody is there."""
    with control_of(settings) as ask_or_raise:

        def ask(question: bytes) -> str:
            try:
                return ask_or_raise(question)
            except NobodyError as error:
                return str(error)

        yield ask


def ask_node(settings: Settings, question: bytes) -> str:
    """The answer to one question."""
    with node_at(settings) as ask:
        return ask(question)


def who(reason: str) -> str:
    """Who asks, and the reason: for the log, the journal and others who look at the status."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # the user has no name
        user = "somebody"
    who = f"{user}@{socket.gethostname()}"[:80]
    return f"{who}: {reason}" if reason else who
