"""A NATS responder that echoes: ``echo_nats.py URL SUBJECT asyncio|uvloop [CERTIFICATE]``."""

import asyncio
import ssl
import sys

import nats


async def main(url, subject, certificate=None):
    """Echo until the standard input closes; with a server's certificate over TLS."""
    tls = ssl.create_default_context(cafile=certificate) if certificate else None
    connection = await nats.connect(url, tls=tls)

    async def echo(message):
        await connection.publish(message.reply, message.data)

    # As much as the largest window may have in flight.
    await connection.subscribe(subject, cb=echo, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await connection.flush()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await connection.close()


if __name__ == "__main__":
    if sys.argv[3] == "uvloop":
        import uvloop

        uvloop.run(main(*sys.argv[1:3], *sys.argv[4:]))
    else:
        asyncio.run(main(*sys.argv[1:3], *sys.argv[4:]))
