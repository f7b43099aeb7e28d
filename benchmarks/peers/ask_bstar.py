"""Our clients. ``ask_bstar.py sync|async|async-request|raw ENDPOINT SERVICE``.

``sync`` and ``async`` call ``map`` with the window, with a window of 1 ``request``; ``async-request`` is as
many tasks as the window, each of which awaits ``request``; ``raw`` speaks MDP/0.2 on a pyzmq DEALER,
replies in order. With BSTAR_KEY and BSTAR_SERVER_KEYS the first three use CURVE.
"""

import asyncio
import logging
import sys
from pathlib import Path

from turns import clock, tell, turns, turns_async

from bstar.security import Security
from bstar_client import AsyncHAClient, HAClient

sys.path.append(str(Path(__file__).parents[1]))
from plain import PlainClient

# It asks one node on purpose.
logging.getLogger("bstar_client.endpoints").setLevel(logging.ERROR)

SILENCE_S = 10.0


def bodies(body, end):
    """The body, until the time is over."""
    while clock() < end:
        yield body


def ask_sync(endpoint, service):
    """HAClient."""
    with HAClient([endpoint], security=Security.from_environment()) as client:
        client.request(service, b"ready?")
        for window, seconds, body in turns():
            started = clock()
            end = started + seconds
            if window == 1:
                latencies, before = [], started
                while before < end:
                    client.request(service, body)
                    after = clock()
                    latencies.append(after - before)
                    before = after
            else:
                replies = client.map(service, bodies(body, end), window=window, ordered=False)
                latencies = [reply.elapsed_s for reply in replies]
            tell(latencies, clock() - started)


async def ask_async(endpoint, service, is_map):
    """AsyncHAClient."""
    async with AsyncHAClient([endpoint], security=Security.from_environment()) as client:
        await client.request(service, b"ready?")
        async for window, seconds, body in turns_async():
            started = clock()
            end = started + seconds
            latencies = []
            if is_map and window > 1:
                replies = client.map(service, bodies(body, end), window=window, ordered=False)
                latencies = [reply.elapsed_s async for reply in replies]
            else:

                async def ask(end=end, body=body, latencies=latencies):
                    while (before := clock()) < end:
                        await client.request(service, body)
                        latencies.append(clock() - before)

                await asyncio.gather(*(ask() for _ in range(window)))
            tell(latencies, clock() - started)


def ask_raw(endpoint, service):
    """A DEALER that speaks MDP/0.2; with one worker replies come in the order of the requests."""
    with PlainClient(endpoint, service, silence_s=SILENCE_S) as client:
        client.wait_ready()
        for window, seconds, body in turns():
            kept = client.keep(window, seconds, body)
            tell(kept.latencies, kept.elapsed_s)


if __name__ == "__main__":
    way, where, what = sys.argv[1:]
    if way == "sync":
        ask_sync(where, what)
    elif way == "raw":
        ask_raw(where, what)
    else:
        asyncio.run(ask_async(where, what, way == "async"))
