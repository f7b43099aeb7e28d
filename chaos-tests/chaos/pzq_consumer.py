"""A consumer of PZQ that writes down each message before it acknowledges it: ``FILE ENDPOINT…``."""

from __future__ import annotations

import sys
from pathlib import Path

from support.pzq_peers import Consumer, context


def main(path: Path, endpoints: list[str]) -> None:
    """Consume for ever. A line is a key and a body; what was written survives a SIGKILL."""
    with context() as zmq_context, Consumer(zmq_context, endpoints) as consumer, path.open("ab", 0) as file:
        for message, body in consumer.messages(limit_s=86_400.0):
            file.write(b"%b %b\n" % (message[1], body[0]))
            consumer.ack(message)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
