"""A RabbitMQ responder that echoes to the reply queue: ``echo_pika.py URL QUEUE``."""

import sys
import threading

import pika


def main(url, queue):
    """Echo until the standard input closes."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue)

    def echo(_channel, _method, properties, body):
        channel.basic_publish("", properties.reply_to, body)

    channel.basic_consume(queue, echo, auto_ack=True)
    end = lambda: (sys.stdin.read(), connection.add_callback_threadsafe(channel.stop_consuming))  # noqa: E731
    threading.Thread(target=end, daemon=True).start()
    print("ready", flush=True)
    channel.start_consuming()
    connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
