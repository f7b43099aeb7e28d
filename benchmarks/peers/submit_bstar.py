"""Our durable clients. ``submit_bstar.py submit|request ENDPOINTS SERVICE``.

``submit`` stores requests that no worker takes: with a window of 1 by ``submit``, otherwise by
``submit_many``. It removes them after its turn. ``request`` asks the echo worker of SERVICE, for comparison.
"""

import sys
from collections import deque

from turns import clean, clock, tell, turns

from bstar.errors import BusyError
from bstar_client import HAClient

# The store may still look for its peer.
START_S_MAX = 30.0


def submit(endpoints, service):
    """Turns of submits."""
    with HAClient(endpoints) as client:
        ids = [first(client, service)]
        for window, seconds, body in turns():
            latencies, sent_at = [], deque()
            started = clock()
            end = started + seconds
            if window == 1:
                before = started
                while before < end:
                    ids.append(client.submit(service, body))
                    after = clock()
                    latencies.append(after - before)
                    before = after
            else:
                bodies = stamped(body, end, sent_at)
                for request in client.submit_many(service, bodies, window=window):
                    ids.append(request)
                    latencies.append(clock() - sent_at.popleft())
            tell(latencies, clock() - started)
            closed = client.map("store.close", map(bytes.fromhex, ids), window=1_000, ordered=False)
            assert sum(1 for _ in closed) == len(ids)
            ids.clear()
            clean()


def first(client, service):
    """The id of a first request, when the store takes it."""
    until = clock() + START_S_MAX
    while True:
        try:
            return client.submit(service, b"ready?")
        except BusyError:
            if clock() > until:
                raise


def stamped(body, end, sent_at):
    """The body, until the time is over; when each was taken."""
    while (now := clock()) < end:
        sent_at.append(now)
        yield body


def request(endpoints, service):
    """Turns of plain requests."""
    with HAClient(endpoints) as client:
        client.request(service, b"ready?")
        for _, seconds, body in turns():
            started = before = clock()
            end, latencies = started + seconds, []
            while before < end:
                client.request(service, body)
                after = clock()
                latencies.append(after - before)
                before = after
            tell(latencies, clock() - started)
            clean()


if __name__ == "__main__":
    way, where, what = sys.argv[1:]
    (submit if way == "submit" else request)(where.split(","), what)
