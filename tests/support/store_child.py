"""A process that writes to a store until it is killed: each entry cancels a request and submits another.

    python -m support.store_child DIRECTORY [NOTES [POINT PASSING]]

It prints the number of each entry when it is synced (``synced N``) or applied (``applied N``), and why it is
not (``error …``); it begins where the store ends. ``NOTES`` is a file that gets one byte for each entry
that is synced. At this passing of the fail ``POINT`` it kills itself.
"""

import functools
import itertools
import os
import signal
import sys
import threading

from bstar_broker.store import fail_points
from bstar_broker.store.core.commands import Cancelled
from bstar_broker.store.core.entries import Entry
from bstar_broker.store.core.events import Applied, DiskOutput, Opened, Trim, Write, Written
from bstar_broker.store.core.records import Record
from bstar_broker.store.disk import Disk
from bstar_broker.store.fail_points import Point
from support.entries import apply, entry, name, submit, submitted
from support.memory_table import MemoryTable
from support.store_disk import PAIR, mark


@functools.cache
def entry_of(number: int) -> Entry:
    """The entry of this number: it depends on nothing else."""
    rows = [submit(10 * number + place, b"x" * (100 * (number % 50))) for place in range(5)]
    return entry(number, submitted(*rows), Cancelled(name(10 * (number - 1))))


@functools.cache
def table_after(number: int) -> list[Record]:
    """The table after this entry, as the rules make it."""
    memory = MemoryTable()
    for each in range(1, number + 1):
        apply(memory, entry_of(each))
    return sorted(memory.records.values(), key=lambda record: record.seq)


def die_at(point: Point, passing: int) -> None:
    """Let the process kill itself there."""
    passed = itertools.count(1)

    def watch(reached: Point) -> None:
        if reached is point and next(passed) == passing:
            os.kill(os.getpid(), signal.SIGKILL)

    fail_points.watcher = watch


def main() -> None:
    """Write until the end of the process."""
    path = sys.argv[2] if len(sys.argv) > 2 else os.devnull
    notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if len(sys.argv) > 4:
        die_at(Point[sys.argv[3]], int(sys.argv[4]))
    woken = threading.Event()
    disk = Disk(sys.argv[1], pair=PAIR, wake=woken.set)
    appended = synced = 0
    while woken.wait():
        woken.clear()
        said = []
        for answer in disk.take():
            if isinstance(answer, Opened):
                appended = synced = answer.last.number
                disk.put([Write(apply_to=synced)])
            elif isinstance(answer, Written):
                if answer.last.number > synced:
                    os.write(notes, b"." * (answer.last.number - synced))
                synced = answer.last.number
                said.append(f"error {answer.error}" if answer.error else f"synced {synced}")
            elif isinstance(answer, Applied):
                said.append(f"applied {answer.number}")
        print("\n".join(said), flush=True)
        orders: list[DiskOutput] = []
        while appended < synced + 20:
            appended += 1
            told = mark() if appended % 10 == 0 else None
            orders.append(Write((entry_of(appended),), apply_to=synced, mark=told))
        if synced > 100:
            orders.append(Trim(synced - 100))
        disk.put(orders)


if __name__ == "__main__":
    main()
