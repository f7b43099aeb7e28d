"""Many clients in one process that all ask at once when they are told: ``storm.py ENDPOINTS COUNT``.

Each is an AsyncHAClient of its own, with its own connection to each node, and has been answered once when the
process prints ``ready``. With the line that follows on its standard input each asks again, at once. The
process prints the moments of the answers as JSON, on the machine's monotonic clock. With BSTAR_KEY and
BSTAR_SERVER_KEYS the clients use CURVE.
"""

import asyncio
import json
import sys
import time

import zmq

from bstar.security import Security
from bstar_client import AsyncHAClient

TIMEOUT_S = 60.0
# Sockets of a client, at most: two DEALERs, what watches them, and what wakes it.
_SOCKETS = 16
# Clients that connect at once before the measurement.
_AT_ONCE = 10


async def main(endpoints: str, count: int) -> None:
    """Be ready, ask once more, tell."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, _SOCKETS * count + 64)
    security = Security.from_environment()
    clients = [AsyncHAClient(endpoints.split(","), context=context, security=security) for _ in range(count)]

    async def ask(client: AsyncHAClient) -> float:
        await client.request("echo", b"x", timeout=TIMEOUT_S)
        return time.monotonic()

    for first in range(0, count, _AT_ONCE):
        await asyncio.gather(*map(ask, clients[first : first + _AT_ONCE]))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print(json.dumps(await asyncio.gather(*map(ask, clients))), flush=True)
    for client in clients:
        await client.close()
    context.term()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
