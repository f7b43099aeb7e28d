"""Faults as ``with`` blocks on a running pair, and as data that a seed can draw and a report can print.

    with apply(run, Step(Kind.STOP, "active"), Step(Kind.DOWN, "client1-passive")):
        run.last(1.0)

A *target* of a process fault is a process (``primary``, ``worker1``, …) or ``active``/``passive``, which are
looked up when the fault begins. A target of a link fault is a link's name or a group of them: ``peer`` (both
state links), ``hears-active`` (the state link on which the passive node hears the active one),
``hears-passive``, ``clients-active``, ``workers-passive``, ``client1-active``, ``client1`` (all its links)
and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum

from bstar_testing.pairs import STATE_LINKS
from bstar_testing.processes import Process
from chaos.cluster import Cluster
from chaos.stage import Stage
from chaos.toxics import BOTH, DOWN, UP, Link, Stream


class Kind(StrEnum):
    """What can be done to a process or a link."""

    KILL = "kill"
    TERM = "term"
    STOP = "stop"
    LATENCY = "latency"
    JITTER = "jitter"
    SLOW = "slow"
    STALL = "stall"
    TIMEOUT = "timeout"
    RESET = "reset"
    SLICER = "slicer"
    LIMIT = "limit"
    SLOW_CLOSE = "slow-close"
    DOWN = "down"


PROCESS_KINDS = (Kind.KILL, Kind.TERM, Kind.STOP)
LINK_KINDS = tuple(kind for kind in Kind if kind not in PROCESS_KINDS)
_STREAMS = {"up": UP, "down": DOWN, "both": BOTH}


@dataclass(frozen=True, slots=True)
class Step:
    """One fault. ``amount`` is milliseconds, kilobytes a second or bytes, whichever the kind needs."""

    kind: Kind
    target: str
    amount: int = 0
    stream: str = "both"

    def __str__(self) -> str:
        amount = f":{self.amount}" if self.amount else ""
        stream = f":{self.stream}" if self.stream != "both" else ""
        return f"{self.kind.value}({self.target}{amount}{stream})"


@contextmanager
def apply(stage: Stage, *steps: Step) -> Iterator[None]:
    """All of these at once. Who is active is asked once, before the first begins."""
    names = _names(stage.cluster, steps)
    with ExitStack() as stack:
        # Processes first: they come back last, when the links are whole again.
        for step in sorted(steps, key=lambda step: step.kind not in PROCESS_KINDS):
            stack.enter_context(_begin(stage, step, names))
        yield


def _names(cluster: Cluster, steps: tuple[Step, ...]) -> dict[str, str]:
    if not any(word in step.target for step in steps for word in ("active", "passive")):
        return {}
    active = cluster.active()
    return {"active": active.name, "passive": cluster.peer_of(active).name}


def _begin(stage: Stage, step: Step, names: dict[str, str]) -> AbstractContextManager[None]:
    if step.kind in PROCESS_KINDS:
        process = stage.cluster.process(names.get(step.target, step.target))
        return _process_fault(stage, step, process)
    links = _links(stage, step.target, names)
    return _link_fault(stage, step, links)


# --- processes ----------------------------------------------------------------------------------------------


@contextmanager
def _process_fault(stage: Stage, step: Step, process: Process) -> Iterator[None]:
    with stage.fault(step.kind, process.name):
        if step.kind is Kind.STOP:
            process.pause()
            try:
                yield
            finally:
                process.resume()
            return
        if step.kind is Kind.KILL:
            process.kill()
        else:
            process.terminate()
            code = process.wait_exit()
            if code != 0:
                process.note("odd exit", f"{code} after SIGTERM")
        try:
            yield
        finally:
            process.start()


# --- links --------------------------------------------------------------------------------------------------


def _links(stage: Stage, target: str, names: dict[str, str]) -> list[Link]:
    links = stage.links
    if target == "peer":
        return [links[name] for name in STATE_LINKS]
    if target in ("hears-active", "hears-passive"):
        # A link is named for who hears first: the passive node's SUB hears the active one.
        speaker = names[target.removeprefix("hears-")]
        return links.matching(lambda name: name in STATE_LINKS and name.endswith(f"-{speaker}"))
    who, _, node = target.partition("-")
    node = names.get(node, node)
    if who in ("clients", "workers"):
        who = who.removesuffix("s")
        found = links.matching(
            lambda name: (
                name.startswith(who) and name not in STATE_LINKS and (not node or name.endswith(f"-{node}"))
            )
        )
    else:
        found = links.matching(
            lambda name: name.split("-")[0] == who and (not node or name == f"{who}-{node}")
        )
    assert found, f"no link is called {target}"
    return found


@contextmanager
def _link_fault(stage: Stage, step: Step, links: list[Link]) -> Iterator[None]:
    names = ",".join(link.name for link in links)
    hits_peer_link = any(link.name in STATE_LINKS for link in links)
    with stage.fault(str(step), names, hits_peer_link=hits_peer_link), ExitStack() as stack:
        for link in links:
            stack.enter_context(_toxic(step, link))
        yield


def _toxic(step: Step, link: Link) -> AbstractContextManager[None]:
    amount, stream = step.amount, _stream(step)
    match step.kind:
        case Kind.LATENCY:
            return link.latency(ms=amount or 150, stream=stream)
        case Kind.JITTER:
            return link.latency(ms=(amount or 200) // 2, jitter_ms=(amount or 200) // 2, stream=stream)
        case Kind.SLOW:
            return link.bandwidth(kb_per_s=amount or 4, stream=stream)
        case Kind.STALL:
            return link.stall(stream=stream)
        case Kind.TIMEOUT:
            return link.timeout(stream=stream)
        case Kind.RESET:
            return link.reset_peer(ms=amount, stream=stream)
        case Kind.SLICER:
            return link.slicer(stream=stream)
        case Kind.LIMIT:
            return link.limit_data(octets=amount or 1_500, stream=stream)
        case Kind.SLOW_CLOSE:
            return link.slow_close(ms=amount or 500, stream=stream)
        case Kind.DOWN:
            return link.down()
        case _:
            raise AssertionError(f"{step} is no fault of a link")


def _stream(step: Step) -> Stream:
    return _STREAMS[step.stream]
