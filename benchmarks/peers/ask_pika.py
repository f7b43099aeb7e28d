"""A client of RabbitMQ: pika with direct reply-to, the window in flight. ``ask_pika.py URL QUEUE``.

With one responder replies come in the order of the requests.
"""

import sys
from collections import deque

import pika
from turns import clock, tell, turns

SILENCE_S_MAX = 10.0
REPLIES = "amq.rabbitmq.reply-to"


def main(url, queue):
    """Take turns until the standard input closes."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    properties = pika.BasicProperties(reply_to=REPLIES)
    sent_at, latencies = deque(), []
    end, body = 0.0, b"ready?"

    def take(_channel, _method, _properties, _body):
        now = clock()
        latencies.append(now - sent_at.popleft())
        if now < end:
            sent_at.append(now)
            channel.basic_publish("", queue, body, properties)

    channel.basic_consume(REPLIES, take, auto_ack=True)

    def send_and_wait(window):
        for _ in range(window):
            sent_at.append(clock())
            channel.basic_publish("", queue, body, properties)
        count, silent_at = len(latencies), clock() + SILENCE_S_MAX
        while sent_at:
            # It may return without a reply, as its own events count, too.
            connection.process_data_events(time_limit=1.0)
            if len(latencies) > count:
                count, silent_at = len(latencies), clock() + SILENCE_S_MAX
            elif clock() > silent_at:
                sys.exit(f"RabbitMQ owes {len(sent_at)} replies and is silent")

    send_and_wait(1)
    for window, seconds, body in turns():  # noqa: B007 - ``take`` sends this body
        latencies.clear()
        started = clock()
        end = started + seconds
        send_and_wait(window)
        tell(latencies, clock() - started)
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
