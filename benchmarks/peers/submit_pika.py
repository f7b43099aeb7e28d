"""A publisher to a durable queue of RabbitMQ with confirms. ``submit_pika.py URL QUEUE``.

Persistent messages, of which the window is not confirmed yet. pika's blocking channel waits for each confirm,
so this uses its connection with callbacks.
"""

import sys
from collections import deque

import pika
from turns import clean, clock, tell, turns

SILENCE_S_MAX = 30.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Publisher:
    """One connection; its loop runs while something is awaited."""

    def __init__(self, url, queue):
        self._queue = queue
        self._channel = None
        self._sent_at = deque()
        self._tag = 0
        self._end = 0.0
        self._body = b""
        self.latencies = []
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=self._opened,
            on_open_error_callback=lambda _, error: sys.exit(f"RabbitMQ: {error}"),
            on_close_callback=lambda _, error: sys.exit(f"RabbitMQ: {error}"),
        )
        self._loop = self._connection.ioloop
        self._run()

    def _opened(self, connection):
        connection.channel(on_open_callback=self._has_channel)

    def _has_channel(self, channel):
        self._channel = channel
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._declare())

    def _declare(self):
        self._channel.queue_declare(self._queue, durable=True, callback=lambda _: self._loop.stop())

    def _run(self):
        """Run the loop until something stops it, or nothing comes for too long."""
        watch = self._loop.call_later(SILENCE_S_MAX, lambda: sys.exit("RabbitMQ is silent"))
        self._loop.start()
        self._loop.remove_timeout(watch)

    def _confirmed(self, frame):
        if isinstance(frame.method, pika.spec.Basic.Nack):
            sys.exit("RabbitMQ does not take a message")
        now, tag = clock(), frame.method.delivery_tag
        count = tag - self._tag if frame.method.multiple else 1
        # Single confirms may overtake each other; their latencies are then assigned in order of sending.
        self._tag = max(self._tag, tag)
        for _ in range(min(count, len(self._sent_at))):
            self.latencies.append(now - self._sent_at.popleft())
            if now < self._end:
                self._publish(now)
        if not self._sent_at:
            self._loop.stop()

    def _publish(self, now):
        self._sent_at.append(now)
        self._channel.basic_publish("", self._queue, self._body, PERSISTENT)

    def turn(self, window, seconds, body):
        """Publish for so long, and wait for the last confirm."""
        self.latencies, self._body = [], body
        self._end = clock() + seconds
        for _ in range(window):
            self._publish(clock())
        self._run()

    def purge(self):
        """Empty the queue."""
        self._channel.queue_purge(self._queue, callback=lambda _: self._loop.stop())
        self._run()


def main(url, queue):
    """Take turns until the standard input closes."""
    publisher = Publisher(url, queue)
    for window, seconds, body in turns():
        started = clock()
        publisher.turn(window, seconds, body)
        tell(publisher.latencies, clock() - started)
        publisher.purge()
        clean()


if __name__ == "__main__":
    main(*sys.argv[1:])
