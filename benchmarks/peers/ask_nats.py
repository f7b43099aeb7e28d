"""Clients of NATS: ``ask_nats.py URL SUBJECT asyncio|uvloop request|inbox [CERTIFICATE]``.

``request``: as many tasks as the window, each of which awaits nats-py's ``request()``. ``inbox``: one
subscription for all replies and a callback that sends the next request, which is what a user writes by hand
when ``request()`` is too slow; with one responder replies come in the order of the requests.
"""

import asyncio
import ssl
import sys
from collections import deque

import nats
from turns import clock, tell, turns_async

TIMEOUT_S = 10.0


async def by_request(connection, subject, window, seconds, body):
    """The latencies of ``request()``."""
    end = clock() + seconds
    latencies = []

    async def ask():
        while (before := clock()) < end:
            await connection.request(subject, body, timeout=TIMEOUT_S)
            latencies.append(clock() - before)

    await asyncio.gather(*(ask() for _ in range(window)))
    return latencies


async def by_inbox(connection, subject, window, seconds, body):
    """The latencies with one inbox for all replies."""
    end = clock() + seconds
    latencies, sent_at = [], deque()
    inbox = connection.new_inbox()
    is_over = asyncio.get_running_loop().create_future()

    async def take(message):
        now = clock()
        latencies.append(now - sent_at.popleft())
        if now < end:
            sent_at.append(now)
            await connection.publish(subject, body, reply=inbox)
        elif not sent_at and not is_over.done():
            is_over.set_result(None)

    subscription = await connection.subscribe(inbox, cb=take, pending_msgs_limit=-1, pending_bytes_limit=-1)
    for _ in range(window):
        sent_at.append(clock())
        await connection.publish(subject, body, reply=inbox)
    async with asyncio.timeout(seconds + TIMEOUT_S):
        await is_over
    await subscription.unsubscribe()
    return latencies


async def main(url, subject, mode, certificate=None):
    """Take turns until the standard input closes; with a server's certificate over TLS."""
    tls = ssl.create_default_context(cafile=certificate) if certificate else None
    connection = await nats.connect(url, tls=tls)
    await connection.request(subject, b"ready?", timeout=TIMEOUT_S)
    ask = by_request if mode == "request" else by_inbox
    async for window, seconds, body in turns_async():
        started = clock()
        latencies = await ask(connection, subject, window, seconds, body)
        tell(latencies, clock() - started)
    await connection.close()


if __name__ == "__main__":
    if sys.argv[3] == "uvloop":
        import uvloop

        uvloop.run(main(*sys.argv[1:3], *sys.argv[4:]))
    else:
        asyncio.run(main(*sys.argv[1:3], *sys.argv[4:]))
