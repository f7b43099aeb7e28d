"""A publisher to a NATS JetStream stream. ``submit_nats.py URL STREAM``.

The stream has one copy, on disk. A callback sends the next message when one is acknowledged: this is faster
than as many tasks as the window that await ``publish``. Acknowledgements come in the order of the messages.
"""

import asyncio
import json
import sys
from collections import deque

import nats
from nats.js.api import StorageType, StreamConfig
from turns import clean, clock, tell, turns_async

TIMEOUT_S = 30.0


async def publish(connection, subject, window, seconds, body):
    """The latencies from a message to its acknowledgement."""
    end = clock() + seconds
    latencies, sent_at = [], deque()
    inbox = connection.new_inbox()
    is_over = asyncio.get_running_loop().create_future()

    async def take(message):
        now = clock()
        if b'"error"' in message.data and not is_over.done():
            is_over.set_exception(RuntimeError(json.loads(message.data)["error"]["description"]))
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


async def main(url, stream):
    """Take turns until the standard input closes."""
    connection = await nats.connect(url)
    jetstream = connection.jetstream()
    config = StreamConfig(name=stream, subjects=[stream], storage=StorageType.FILE, num_replicas=1)
    await jetstream.add_stream(config)
    async for window, seconds, body in turns_async():
        started = clock()
        latencies = await publish(connection, stream, window, seconds, body)
        tell(latencies, clock() - started)
        await jetstream.purge_stream(stream)
        clean()
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
