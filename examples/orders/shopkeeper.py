"""The shop's counter: orders are left at the brokers, and what became of them is looked up later.

python shopkeeper.py order KEY SKU COUNT    leave an order; the same KEY is the same order
python shopkeeper.py result ID              wait for its receipt
python shopkeeper.py deliver KEY SKU COUNT  put goods into the stock
python shopkeeper.py dead                   the orders that ended without a receipt
python shopkeeper.py retry                  try those again whose goods were missing
"""

import sys
from collections.abc import Iterator

import msgspec

from bstar_client import BstarError, HAClient, RequestStatus, RetryPolicy
from orders import Delivery, Order, Receipt

# With the minute between two attempts, an order waits an hour for its goods.
PATIENCE = RetryPolicy(max=60)


def place(client: HAClient, key: str, order: Order) -> str:
    """Leave an order; returns its id. The two brokers have it on disk then."""
    return client.submit("order", order, key=key, retries=PATIENCE)


def dead(client: HAClient) -> Iterator[tuple[RequestStatus, Order | None]]:
    """The dead letters and their orders; None for a body that is no order."""
    for letter in client.dead_letters("order", bodies=True):
        try:
            yield letter, msgspec.json.decode(letter.body, type=Order)
        except msgspec.DecodeError:
            yield letter, None


def retry(client: HAClient) -> Iterator[str]:
    """Try the orders again that may succeed now; a declined one never will. Yields their ids."""
    for letter in [*client.dead_letters("order")]:
        if letter.cause == "failed":
            client.retry(letter.id)
            yield letter.id


def main(client: HAClient, words: list[str]) -> None:
    """One command."""
    match words:
        case ["order", key, sku, count]:
            print(place(client, key, Order(int(sku), int(count))))
        case ["result", request_id]:
            receipt = client.result(request_id, reply=Receipt)
            print(f"order {receipt.number}: {receipt.cents / 100:.2f}")
        case ["deliver", key, sku, count]:
            delivered = client.submit("deliver", Delivery(int(sku), int(count)), key=key)
            print(client.result(delivered, reply=int), "in stock")
        case ["dead"]:
            for letter, order in dead(client):
                print(letter.id, letter.code or letter.cause, order, letter.text)
        case ["retry"]:
            print(*retry(client), sep="\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    with HAClient(timeout=30) as shared:
        try:
            main(shared, sys.argv[1:])
        except BstarError as error:
            raise SystemExit(f"shopkeeper: {error}") from error
