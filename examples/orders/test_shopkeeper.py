"""Orders: booked once, tried until the goods are there, dead letters that are tried again."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from bstar_client import DeadLetterError, Declined, HAClient, Request, Retry
from bstar_testing import fake, pair
from orders import Books, Delivery, Order, Receipt, app, order
from shopkeeper import dead, main, place, retry


@pytest.fixture(autouse=True)
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "orders.db"
    monkeypatch.setenv("ORDERS_DB", str(path))
    return path


def deliver(client: HAClient, count: int, sku: int = 7) -> int:
    return client.request("deliver", Delivery(sku, count), reply=int)


def booked(path: Path) -> list[tuple[int, int]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT sku, count FROM orders ORDER BY number").fetchall()


def test_an_order_gets_its_receipt_and_takes_its_goods_from_the_stock(books: Path) -> None:
    with fake(app) as client:
        deliver(client, 5)
        stored = place(client, "order 1", Order(7, 2))
        assert client.result(stored, reply=Receipt) == Receipt(1, 2_500)
        assert deliver(client, 1) == 4
    assert booked(books) == [(7, 2)]


def test_an_order_that_is_left_twice_is_one_order(books: Path) -> None:
    with fake(app) as client:
        deliver(client, 5)
        stored = place(client, "order 1", Order(7, 2))
        assert place(client, "order 1", Order(7, 2)) == stored
        client.result(stored)
    assert booked(books) == [(7, 2)]


def test_a_handler_that_runs_twice_books_once(books: Path) -> None:
    request = Request.of(is_redelivered=True)
    opened = Books(str(books))
    with closing(opened.connection):
        opened.connection.execute("INSERT INTO stock VALUES (7, 5)")
        assert order(Order(7, 2), request, opened) == order(Order(7, 2), request, opened) == Receipt(1, 2_500)
        assert booked(books) == [(7, 2)]
        with pytest.raises(Retry):
            order(Order(7, 9), Request.of(), opened)
        with pytest.raises(Declined):
            order(Order(7, 0), Request.of(), opened)
    assert booked(books) == [(7, 2)]


def test_a_sold_out_order_waits_for_the_delivery_also_over_a_failover(books: Path) -> None:
    shop = fake(app)
    with shop as client:
        stored = place(client, "order 1", Order(7, 2))
        shop.pass_time(600)
        assert client.status_of(stored).attempts >= 10
        shop.fail_over()
        deliver(client, 2)
        assert client.result(stored, reply=Receipt) == Receipt(1, 2_500)
    assert booked(books) == [(7, 2)]


def test_an_order_of_what_is_not_sold_is_a_dead_letter_at_once() -> None:
    with fake(app) as client:
        with pytest.raises(DeadLetterError) as caught:
            client.result(place(client, "order 1", Order(3, 1)))
        assert (caught.value.cause, caught.value.code, caught.value.attempts) == (
            "declined",
            "no-such-sku",
            1,
        )


def test_dead_letters_are_listed_and_those_without_goods_tried_again(
    books: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = fake(app)
    with shop as client:
        unknown, sold_out = place(client, "order 1", Order(3, 1)), place(client, "order 2", Order(7, 2))
        shop.pass_time(3_600)
        found = {letter.id: (letter.cause, wanted) for letter, wanted in dead(client)}
        assert found == {unknown: ("declined", Order(3, 1)), sold_out: ("failed", Order(7, 2))}
        main(client, ["dead"])
        assert f"{unknown} no-such-sku Order(sku=3, count=1)" in capsys.readouterr().out
        deliver(client, 2)
        assert list(retry(client)) == [sold_out]
        main(client, ["result", sold_out])
        assert capsys.readouterr().out == "order 1: 25.00\n"
        assert [letter.id for letter, _ in dead(client)] == [unknown]
    assert booked(books) == [(7, 2)]


@pytest.mark.loopback
def test_orders_survive_both_nodes_and_their_workers(books: Path) -> None:
    with pair(workers=0, has_store=True) as p:
        argv = [sys.executable, "-m", "bstar_cli", "run", "orders:app", "--processes", "2"]
        served = p.start_process("shop", argv, {"ORDERS_DB": str(books)})
        client = p.client(timeout=60)
        deliver(client, 20)
        stored = [place(client, f"order {number}", Order(7, 1)) for number in range(10)]
        for each in (p.primary, p.backup, served):
            each.kill()
        for each in (p.primary, p.backup, served):
            each.launch()
        assert {client.result(each, reply=Receipt).cents for each in stored} == {1_250}
        assert deliver(client, 1) == 11
    assert booked(books) == [(7, 1)] * 10
