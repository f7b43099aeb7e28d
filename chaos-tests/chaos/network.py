"""Hosts in namespaces, the wire between them and their firewalls, made and removed together.

    with Network(["primary", "backup", "worker1", "client1"]) as network:
        Cluster(folder, hosts={"primary": network["primary"], "backup": network["backup"]})
        with network.isolate("primary"):  # every packet to and from its host vanishes silently
            ...

Addresses are of 198.18.0.0/24 (RFC 2544: for tests) and exist in the namespaces only. Needs root, TUN,
iproute2 and nftables; ``require_namespaces`` skips a test, or fails it where CI=true, if one is missing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Self

import pytest

from chaos.firewall import Firewall
from chaos.netns import Namespace, NetnsHost, remove_leftovers, what_is_missing
from chaos.wire import Wire

By = Literal["wire", "drop", "reset"]
"""Who keeps packets back: the wire, silently; the receiver's firewall, silently; or that with a TCP reset."""

_ADDRESS = "198.18.0.{}"
_HOSTS_MAX = 250


def require_namespaces() -> None:
    """Skip the test that calls this if this machine has no namespaces for it; with CI=true it fails."""
    missing = what_is_missing()
    if missing is None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"hosts in network namespaces are needed here: {missing}")
    pytest.skip(f"NOT TESTED: {missing}")


class Network:
    """Hosts by name, all joined."""

    def __init__(self, names: Sequence[str], *, seed: int = 0) -> None:
        assert len(set(names)) == len(names) <= _HOSTS_MAX
        remove_leftovers()
        self.hosts: dict[str, NetnsHost] = {}
        try:
            for number, name in enumerate(names, 1):
                self.hosts[name] = NetnsHost(name, Namespace.create(name), _ADDRESS.format(number))
            self.wire = Wire(self.hosts, seed=seed)
        except BaseException:
            self._remove_hosts()
            raise
        self.firewall = Firewall(self.hosts)

    def __getitem__(self, name: str) -> NetnsHost:
        return self.hosts[name]

    @contextmanager
    def isolate(self, name: str, *, by: By = "wire") -> Iterator[None]:
        """Cut one host off from all others. What it has on its own 127.0.0.1 stays reachable."""
        with self.partition({name}, set(self.hosts) - {name}, by=by):
            yield

    @contextmanager
    def partition(
        self, a: Collection[str], b: Collection[str], *, one_way: bool = False, by: By = "wire"
    ) -> Iterator[None]:
        """Nothing comes from ``a`` to ``b`` (nor back, unless ``one_way``)."""
        if by == "wire":
            with self.wire.partition(a, b, one_way=one_way):
                yield
        else:
            with self.firewall.partition(a, b, one_way=one_way, action=by):
                yield

    def close(self) -> None:
        """Kill what runs on the hosts and remove them. Idempotent."""
        self.wire.close()
        self._remove_hosts()

    def _remove_hosts(self) -> None:
        while self.hosts:
            _, host = self.hosts.popitem()
            host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
