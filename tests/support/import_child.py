"""A process that takes another node's table into its store, part by part, and dies on the way.

    python -m support.import_child DIRECTORY POINT PASSING

The table is that after entry ``END`` of ``store_child``. It prints ``whole`` when it is stored.
"""

import sys
import threading

from bstar_broker.store.core.entries import Position
from bstar_broker.store.core.events import Import, Opened, Written
from bstar_broker.store.disk import Disk
from bstar_broker.store.fail_points import Point
from support.store_child import die_at, table_after
from support.store_disk import PAIR

END = 40
PARTS = 4


def main() -> None:
    """Import it."""
    die_at(Point[sys.argv[2]], int(sys.argv[3]))
    records = table_after(END)
    size = len(records) // PARTS + 1
    parts = [records[begin : begin + size] for begin in range(0, len(records), size)]
    woken = threading.Event()
    disk = Disk(sys.argv[1], pair=PAIR, wake=woken.set)
    order = 0
    while woken.wait():
        woken.clear()
        for answer in disk.take():
            if not isinstance(answer, Opened | Written):
                continue
            if order == PARTS:
                print("whole", flush=True)
                disk.close()
                return
            order += 1
            applied = Position(9, END) if order == PARTS else None
            disk.put([Import(order == 1, parts[order - 1], applied, 1_000, (Position(9, 1),), order)])


if __name__ == "__main__":
    main()
