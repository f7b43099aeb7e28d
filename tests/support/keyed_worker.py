"""A worker process for bulk calls: it writes down the identity of each request that it executes.

    keyed_worker.py SERVICE RECORD_FILE STORE ENDPOINT…

STORE: "none", "memory", or the path of a file of replies. The reply is the body backwards. A body that begins
with `fail` raises, one that begins with `slow` takes a tenth of a second, and one that begins with `frames`
is answered with two frames.
"""

from __future__ import annotations

import os
import sys
import time

from bstar_client import ReplyMemory, ReplyStore, Request, Worker
from bstar_client.workers.reply_file import ReplyFile

SLOW_S = 0.1
CREDIT = 32


def main(service: str, path: str, kept: str, *endpoints: str) -> None:
    record = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    store: ReplyStore | None = None
    if kept == "memory":
        store = ReplyMemory(count_max=2_000_000)
    elif kept != "none":
        store = ReplyFile(kept)

    def handle(request: Request) -> bytes | list[bytes]:
        # One system call: a kill leaves whole lines only.
        os.write(record, request.identity.hex().encode() + b"\n")
        if request.body.startswith(b"fail"):
            raise ValueError(request.body.decode())
        if request.body.startswith(b"slow"):
            time.sleep(SLOW_S)
        if request.body.startswith(b"frames"):
            return [b"two", b"frames"]
        return request.body[::-1]

    Worker(endpoints, service, handle, credit=CREDIT, dedupe=store).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
