"""A client of the echo server: it asks once a second, and whichever server is active answers.

python examples/echo_client.py [PRIMARY BACKUP]
"""

import itertools
import sys
import time

from bstar_client import StarClient

SERVERS = ["tcp://127.0.0.1:5001", "tcp://127.0.0.1:5002"]

with StarClient(sys.argv[1:] or SERVERS, timeout=None) as client:
    for number in itertools.count(1):
        reply = client.request(b"%d" % number)
        print(f"{reply.body.decode()} from {reply.endpoint}", flush=True)
        time.sleep(1.0)
