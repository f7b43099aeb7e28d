"""Log entries and requests of the durable store, for tests."""

from collections.abc import Sequence
from typing import Any

import msgspec

from bstar.wire import durable
from bstar_broker.store.core import commands, rules
from bstar_broker.store.core.commands import Command, Defaults, Submitted
from bstar_broker.store.core.entries import Entry, Position
from bstar_broker.store.core.events import Change
from bstar_broker.store.core.records import Table

DEFAULTS = Defaults()


def name(number: int) -> bytes:
    """An id; a greater number makes a greater one."""
    return number.to_bytes(durable.ID_BYTES, "big")


def submit(number: int, body: bytes = b"body", service: bytes = b"price", **options: Any) -> durable.Submit:
    """A request to store, with the id ``name(number)``."""
    return durable.Submit(name(number), service, [body], **options)


def submitted(*rows: durable.Submit, owner: str = "", defaults: Defaults = DEFAULTS) -> Submitted:
    """The command that stores them."""
    return Submitted(owner, [msgspec.Raw(durable.encode(row)) for row in rows], defaults)


def entry(number: int, *orders: Command, at_ms: int | None = None, epoch: int = 1) -> Entry:
    """An entry; by default each is a second after the one before."""
    return Entry.of(
        Position(epoch, number), number * 1000 if at_ms is None else at_ms, commands.encode(orders)
    )


def carry_out(table: Table, number: int, *orders: Command, at_ms: int | None = None) -> list[Change]:
    """Apply an entry of these commands."""
    return apply(table, entry(number, *orders, at_ms=at_ms))


def apply(table: Table, given: Entry) -> list[Change]:
    """Apply an entry as the disk does: its commands are read from its octets."""
    orders: Sequence[Command] = commands.decode(given.commands)
    return rules.apply(given, orders, table)
