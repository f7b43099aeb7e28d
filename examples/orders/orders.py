"""A shop that books orders from its stock: once for each order, whatever dies when.

    bstar run orders:app --processes 2

The books are an SQLite file (``ORDERS_DB``) that all processes open. What a request changes and the reply to
it are written in one transaction, so a repetition changes nothing and gets the same reply.
"""

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from bstar_client import App, Declined, Request, Retry

PRICES = {7: 1_250, 8: 990}
# How long a sold-out order waits for the next delivery.
RESTOCK_S = 60.0

T = TypeVar("T")

app = App()


class Order(msgspec.Struct):
    """What a customer wants."""

    sku: int
    count: int


class Receipt(msgspec.Struct):
    """What the customer gets."""

    number: int
    cents: int


class Delivery(msgspec.Struct):
    """What comes into the stock."""

    sku: int
    count: int


class Books:
    """The database of one process. Its services take turns at the one connection."""

    def __init__(self, path: str) -> None:
        self._turn = threading.Lock()
        self.connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        self.connection.executescript("""
            CREATE TABLE IF NOT EXISTS stock (sku INTEGER PRIMARY KEY, count INTEGER NOT NULL);
            CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, sku INTEGER, count INTEGER);
            CREATE TABLE IF NOT EXISTS done (identity BLOB PRIMARY KEY, reply BLOB NOT NULL);
        """)

    def once(self, identity: bytes, kind: type[T], act: Callable[[sqlite3.Connection], T]) -> T:
        """What ``act`` returns; for an identity that is known what it returned the first time."""
        with self._turn, self.connection as books:  # commits, or rolls back if anything is raised
            books.execute("BEGIN IMMEDIATE")  # other processes wait here
            known = books.execute("SELECT reply FROM done WHERE identity = ?", [identity]).fetchone()
            if known is not None:
                return msgspec.json.decode(known[0], type=kind)
            reply = act(books)
            books.execute("INSERT INTO done VALUES (?, ?)", [identity, msgspec.json.encode(reply)])
            return reply


@app.resource
def open_books() -> Iterator[Books]:
    """For each process."""
    books = Books(os.environ.get("ORDERS_DB", "orders.db"))
    yield books
    books.connection.close()


@app.service("order", threads=1)
def order(wanted: Order, request: Request, books: Books) -> Receipt:
    """Book it, or wait for the next delivery."""
    if wanted.sku not in PRICES:
        raise Declined("no-such-sku", f"we do not sell {wanted.sku}", data=sorted(PRICES))
    if wanted.count < 1:
        raise Declined("bad-count", f"an order is for one at least, not for {wanted.count}")

    def book(books: sqlite3.Connection) -> Receipt:
        taken = books.execute(
            "UPDATE stock SET count = count - :count WHERE sku = :sku AND count >= :count",
            {"sku": wanted.sku, "count": wanted.count},
        )
        if taken.rowcount == 0:
            raise Retry(f"there are not {wanted.count} of {wanted.sku}", after=RESTOCK_S)
        booked = books.execute("INSERT INTO orders (sku, count) VALUES (?, ?)", [wanted.sku, wanted.count])
        assert booked.lastrowid is not None
        return Receipt(booked.lastrowid, wanted.count * PRICES[wanted.sku])

    return books.once(request.identity, Receipt, book)


@app.service("deliver", threads=1)
def deliver(delivery: Delivery, request: Request, books: Books) -> int:
    """Put it into the stock; returns how many are there then."""

    def put(books: sqlite3.Connection) -> int:
        books.execute(
            "INSERT INTO stock VALUES (:sku, :count) ON CONFLICT DO UPDATE SET count = count + :count",
            {"sku": delivery.sku, "count": delivery.count},
        )
        [count] = books.execute("SELECT count FROM stock WHERE sku = ?", [delivery.sku]).fetchone()
        return int(count)

    return books.once(request.identity, int, put)
