"""A pair that keeps durable requests, each node on a disk of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bstar_testing import LoopbackHost
from support.brokers import BrokerPair


@contextmanager
def stored_pair(folder: Path, **settings: object) -> Iterator[BrokerPair]:
    """Run one; when the block begins the primary is active. ``settings``: keys of the section ``store``."""
    with LoopbackHost() as host:
        shared = {f"store.{name}": value for name, value in settings.items()}
        pair = BrokerPair(
            folder,
            settings={"store.link": f"tcp://{host.address}:{host.ports(1)[0]}", **shared},
            primary={"store.directory": str(folder / "primary-store")},
            backup={"store.directory": str(folder / "backup-store")},
        )
        with pair:
            pair.start()
            yield pair
