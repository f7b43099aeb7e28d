"""A deliberately broken build: ``python -m chaos.mutant MUTATION -- COMMAND ARGUMENT…``.

It patches one rule out of a production class in its own process and then runs what would have run anyway:
``serve …`` (the bstar command), ``client …`` (``chaos.client``) or ``worker …`` (``chaos.worker``). Scenarios
that are run with such builds must fail; that is the test of the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec

from bstar.star import StarMachine
from bstar_broker.core.endings import Endings
from bstar_broker.store.core.leader import Copies
from bstar_broker.store.sqlite_file import StoreFile
from bstar_cli.main import main as bstar
from bstar_client.core.native.reply_reader import ReplyReader
from bstar_client.core.worker.fence import Fence, Moved
from chaos.client import main as client
from chaos.worker import main as worker


def _without_the_stall_rule() -> None:
    """A node does not notice that it was away."""
    StarMachine._notice_absence = lambda self, now: []  # type: ignore[method-assign]
    StarMachine._on_stall = lambda self, gap_s, now: []  # type: ignore[method-assign]


def _without_the_matching_of_replies() -> None:
    """A client gives each reply to its oldest call."""
    sound = ReplyReader.receive_final

    def to_the_oldest(self: ReplyReader, node: Any, message: Any, outputs: Any, now: float) -> None:
        if self._calls.by_identity:
            message = msgspec.structs.replace(message, identity=next(iter(self._calls.by_identity)))
        sound(self, node, message, outputs, now)

    ReplyReader.receive_final = to_the_oldest  # type: ignore[method-assign]


def _without_the_check_of_epochs() -> None:
    """A worker takes no note of epochs, so it obeys any node, and tells none of another."""
    Fence.hear = lambda self, epoch, expiry_s, now: Moved.NOT  # type: ignore[method-assign]


def _without_the_rule_of_once() -> None:
    """A node gives what must not be executed twice to another worker when the first is lost."""
    sound = Endings.redeliver

    def to_another(self: Endings, request: Any, how: str, now: float, outputs: Any, crowd: int = 0) -> None:
        request.is_once = False
        sound(self, request, how, now, outputs, crowd)

    Endings.redeliver = to_another  # type: ignore[method-assign]


def _without_the_sync() -> None:
    """The store's transactions are not synced."""
    sound = StoreFile.begin
    StoreFile.begin = lambda self, *, is_synced: sound(self, is_synced=False)  # type: ignore[method-assign]


def _without_the_second_disk() -> None:
    """The leader of the store commits what is on its own disk."""
    Copies.may_commit_alone = property(lambda self: True)  # type: ignore[assignment,method-assign]


MUTATIONS: dict[str, Callable[[], None]] = {
    "stall-rule": _without_the_stall_rule,
    "reply-matching": _without_the_matching_of_replies,
    "epoch-check": _without_the_check_of_epochs,
    "once-rule": _without_the_rule_of_once,
    "store-sync": _without_the_sync,
    "second-disk": _without_the_second_disk,
}


def main(arguments: list[str]) -> int:
    """Break it, then run it."""
    mutation, separator, command, *rest = arguments
    assert separator == "--", __doc__
    MUTATIONS[mutation]()
    if command == "serve":
        return bstar([command, *rest])
    return {"client": client, "worker": worker}[command](rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
