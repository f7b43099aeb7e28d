"""A test kit: a real pair on this machine, and faults on purpose.

    with pair(workers=2) as p:
        with p.client() as client:
            p.kill_active()
            assert client.request("echo", b"x").body == b"x"

Brokers and workers are processes (``bstar serve``, ``bstar worker``), so the machine needs the ``bstar``
command. The kit is a package of its own, above client and broker: it reads a node's typed state, which the
client may not import, and applications that only call do not carry it. docs/testing.md has examples.
"""

from bstar_testing.hosts import Host, LoopbackHost
from bstar_testing.nodes import Node
from bstar_testing.pairs import Pair, direct, pair
from bstar_testing.processes import HarnessError, Process, wait_until

__all__ = ["HarnessError", "Host", "LoopbackHost", "Node", "Pair", "Process", "direct", "pair", "wait_until"]
