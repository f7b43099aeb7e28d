"""A test kit: a pair in memory for most tests, and a real pair on this machine with faults on purpose.

    with fake({"price": quote}) as client:
        assert client.request("price", b"apple").body == b"3"

    with pair(workers=2) as p:
        with p.client() as client:
            p.kill_active()
            assert client.request("echo", b"x").body == b"x"

``fake`` runs the production cores in the test's process, without sockets and in virtual time. ``pair``
starts processes (``bstar serve``, ``bstar worker``), so the machine needs the ``bstar`` command. The kit is a
package of its own, above client and broker: it reads a node's typed state, which the client may not import,
and applications that only call do not carry it. docs/testing.md has examples, ``bstar_testing.plugin``
fixtures for pytest.
"""

from typing import TYPE_CHECKING

from bstar.base.on_demand import on_demand

if TYPE_CHECKING:
    from bstar_testing.hosts import Host, LoopbackHost
    from bstar_testing.memory.pair import FakePair, fake
    from bstar_testing.nodes import Node
    from bstar_testing.pairs import Pair, direct, pair
    from bstar_testing.processes import HarnessError, Process, wait_until

__all__ = [
    "FakePair",
    "HarnessError",
    "Host",
    "LoopbackHost",
    "Node",
    "Pair",
    "Process",
    "direct",
    "fake",
    "pair",
    "wait_until",
]

# A test that only needs a pair in memory loads nothing of the other one, and the other way round.
__getattr__ = on_demand(
    __name__,
    {
        "bstar_testing.hosts": ["Host", "LoopbackHost"],
        "bstar_testing.memory.pair": ["FakePair", "fake"],
        "bstar_testing.nodes": ["Node"],
        "bstar_testing.pairs": ["Pair", "direct", "pair"],
        "bstar_testing.processes": ["HarnessError", "Process", "wait_until"],
    },
)
