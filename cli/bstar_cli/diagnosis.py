"""What is wrong with a pair, from what its nodes say: an exit code, a reason for scripts, and a sentence.

An address that does not answer is not a dead node: the process may live where this command cannot reach it.
So what each node knows of the other one counts as well, and a sentence says which of the two it is. Why a
node does not serve it says itself (its ``readiness``, as ``/readyz`` has it). docs/operations.md says what to
do about each reason.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import msgspec

from bstar.fleet import Fleet
from bstar_broker.core.findings import NODE
from bstar_broker.core.snapshot import Finding, NodeState, PairState
from bstar_cli import exits
from bstar_client.calls.status import NodeReport
from bstar_client.links.endpoint_probe import is_elsewhere


class Reason(enum.StrEnum):
    """Why a pair is as it is, and the exit code. Scripts read the values, so they never change."""

    code: int

    def __new__(cls, word: str, code: int) -> Self:
        """A member is its word, and has its code beside it."""
        self = str.__new__(cls, word)
        self._value_, self.code = word, code
        return self

    SERVED = "served", exits.OK
    SERVICE_TROUBLE = "service-trouble", exits.SERVICE_TROUBLE
    NODE_TROUBLE = "node-trouble", exits.FAILED
    STRAYS = "strays", exits.ASTRAY
    WRONG_PAIR = "wrong-pair", exits.ASTRAY
    ARBITER_SILENT = "arbiter-silent", exits.FAILED
    EPOCH_UNSAVED = "epoch-unsaved", exits.FAILED
    STORE_DAMAGED = "store-damaged", exits.FAILED
    STORE_WAITS = "store-waits", exits.FAILED
    STORE_ALONE = "store-alone", exits.FAILED
    DESCRIPTORS_SHORT = "descriptors-short", exits.FAILED
    SECURITY_FILES_BROKEN = "security-files-broken", exits.FAILED
    PAUSED = "paused", exits.FAILED
    FRONTS_APART = "fronts-apart", exits.FAILED
    CLIENTS_CUT_OFF = "clients-cut-off", exits.FAILED
    PEERS_APART = "peers-apart", exits.FAILED
    NODE_DOWN = "node-down", exits.FAILED
    NODE_UNREACHABLE = "node-unreachable", exits.FAILED
    ACTIVE_UNREACHABLE = "active-unreachable", exits.FAILED
    VOTE_NEEDED = "vote-needed", exits.NONE_ACTIVE
    CHOOSING = "choosing", exits.NONE_ACTIVE
    STARTING = "starting", exits.NONE_ACTIVE
    NEVER_MET_PRIMARY = "never-met-primary", exits.NONE_ACTIVE
    NO_MAJORITY = "no-majority", exits.NONE_ACTIVE
    HELD = "held", exits.NONE_ACTIVE
    DRAINED = "drained", exits.FAILED
    DRAINING = "draining", exits.NONE_ACTIVE
    ERROR = "error", exits.NONE_ACTIVE
    NO_ANSWER = "no-answer", exits.NONE_ACTIVE
    NOT_ALLOWED = "not-allowed", exits.USAGE
    BOTH_ACTIVE = "both-active", exits.MANY_ACTIVE


# From bad to worse.
_WORSE = (
    exits.OK,
    exits.SERVICE_TROUBLE,
    exits.ASTRAY,
    exits.FAILED,
    exits.USAGE,
    exits.NONE_ACTIVE,
    exits.MANY_ACTIVE,
)

# What a node says of itself, the most hopeful first: it is what the pair waits for. Nodes that stand by and
# hear each other are about to decide.
_STANDINGS = {
    "peer-silent": (Reason.VOTE_NEEDED, "the next request of a client makes a node active"),
    "stands-by": (Reason.CHOOSING, "the nodes are deciding: look again in a moment"),
    "starting": (Reason.STARTING, "start the backup, or let a client ask after the failover timeout"),
    "never-met-primary": (
        Reason.NEVER_MET_PRIMARY,
        "start the primary, or mend its link to the backup; if it is dead: bstar promote",
    ),
    "no-majority": (Reason.NO_MAJORITY, "start the other node or the arbiter, or mend the links to them"),
    "held": (Reason.HELD, "start the node that served, or end the pause: bstar resume"),
    "drained": (Reason.DRAINING, "end the drain (bstar drain --undo), or start the other node"),
    "draining": (Reason.DRAINING, "start a node when it has stopped"),
    "error": (Reason.ERROR, "correct what the node's log names and start it again"),
}


# The peer of a broker alone is silent for ever; a silent peer of a pair is a verdict of its own.
_PEER_SILENT = "peer-silent"
# The findings, the worst first. A newer node may have others, which come last.
_RANKS = {entry.name: rank for rank, entry in enumerate(NODE)}
# A finding about a node is the reason of its name, or this one; any other is trouble of the node.
_OF_FINDING = {reason.value: reason for reason in Reason} | {"takeovers-paused": Reason.PAUSED}


class Seen(msgspec.Struct, frozen=True):
    """One endpoint and what was seen there: a node's view, or None and ``error`` says why not."""

    endpoint: str
    view: NodeState | None = None
    error: str | None = None
    is_denied: bool = False

    @property
    def reason(self) -> str:
        """The node's own word for how it stands."""
        if self.view is None:
            return "not-allowed" if self.is_denied else "no-answer"
        return self.view.readiness.reason

    @property
    def word(self) -> str:
        """The same in a table for people."""
        return self.reason.replace("-", " ")

    @classmethod
    def of(cls, report: NodeReport) -> "Seen":
        """Read a node's report."""
        if report.state is None:
            return cls(report.endpoint, None, report.error, report.is_denied)
        try:
            return cls(report.endpoint, msgspec.convert(report.state, NodeState))
        except msgspec.ValidationError:
            text = "the node's answer is not what this version of bstar understands"
            return cls(report.endpoint, None, text)


class Verdict(msgspec.Struct, frozen=True):
    """What to think of a pair: the exit code, the reason, and the sentence that explains it."""

    code: int
    reason: Reason
    why: str

    @classmethod
    def of(cls, reason: Reason, why: str) -> "Verdict":
        """The verdict for a reason."""
        return cls(reason.code, reason, why)


class Trouble(msgspec.Struct, frozen=True):
    """One service of one pair, and what a node found: a finding's name and what it says."""

    service: str
    pair: str
    sign: str
    why: str

    def __str__(self) -> str:
        return f"{self.service}: {self.why}"


class Stray(msgspec.Struct, frozen=True):
    """A service with workers or waiting requests at a pair that it does not belong to."""

    service: str
    pair: str
    belongs_to: str
    workers: int
    queued: int

    def __str__(self) -> str:
        if self.workers:
            return f"{self.service} has workers at {self.pair}, but clients look for it at {self.belongs_to}"
        return f"{self.service} has requests at {self.pair}, but its workers belong to {self.belongs_to}"


def judge(nodes: Sequence[Seen], name: str | None = None) -> Verdict:
    """What to think of a pair that looks like this. ``name`` is what its nodes should call it."""
    known = [(seen.endpoint, seen.view.pair) for seen in nodes if seen.view is not None]
    names = {pair.pair for _, pair in known}
    if len(names) > 1:
        listed = " and ".join(f"{endpoint} is of {pair.pair}" for endpoint, pair in known)
        return Verdict.of(Reason.WRONG_PAIR, f"the nodes are of different pairs: {listed}; correct the list")
    active = [pair for _, pair in known if pair.is_active]
    if len(active) > 1:
        roles = ", ".join(pair.role for pair in active)
        text = f"{len(active)} nodes serve: {roles}; mend the link between them, then one yields"
        return Verdict.of(Reason.BOTH_ACTIVE, text)
    denied = " and ".join(seen.endpoint for seen in nodes if seen.is_denied)
    if denied:
        serves = f"the {active[0].role} serves, but " if active else ""
        text = (
            f"{serves}nothing is known of {denied}, because this command may not ask there: give it the key "
            "of an entry with operator: true, and the public keys of both nodes (--key-file, --server-keys)"
        )
        return Verdict.of(Reason.NOT_ALLOWED, text)
    verdict = _judge_active(nodes, active[0]) if active else _judge_inactive(nodes)
    wrong = [seen for seen in nodes if seen.error is not None and is_elsewhere(seen.error)]
    if wrong:
        found = " and ".join(f"{seen.endpoint} ({(seen.error or '').partition(':')[0]})" for seen in wrong)
        verdict = Verdict.of(verdict.reason, f"{verdict.why}; correct the list: {found}")
    if verdict.code == exits.OK and name is not None and names != {name}:
        text = f"{verdict.why}, but it is listed as {name} and calls itself {names.pop()}; use one name"
        return Verdict.of(Reason.WRONG_PAIR, text)
    return verdict


def _judge_active(nodes: Sequence[Seen], active: PairState) -> Verdict:
    """One node says that it serves."""
    serves = f"the {active.role} serves"
    silent = " and ".join(seen.endpoint for seen in nodes if seen.view is None)
    views = [seen.view for seen in nodes if seen.view is not None]
    pairs = [view.pair for view in views]
    found = [each for each in node_findings(views) if each[1].name != _PEER_SILENT]
    if silent and active.is_peer_fresh:
        text = (
            f"{serves} and hears its peer {active.peer_state}, but {silent} does not answer this command: "
            "the node lives, and its address cannot be reached from here"
        )
        return Verdict.of(Reason.NODE_UNREACHABLE, text)
    if silent:
        hangs = any((seen.error or "").startswith("connected") for seen in nodes if seen.view is None)
        do = "its process is there: see why it does not answer, or restart it" if hangs else "start that node"
        text = f"{serves} and does not hear its peer, and {silent} does not answer: {do}"
        # Durable requests may wait for that node. What a restart of both nodes needs is said as well.
        return Verdict.of(Reason.NODE_DOWN, "; ".join((text, *map(_said, found))))
    for pair in pairs:
        if pair.drained_why:
            text = f"{serves}, and the {pair.role} is drained ({pair.drained_why}), so no node stands by"
            return Verdict.of(Reason.DRAINED, f"{text}; when the work is done: bstar drain --undo")
    deaf = [pair.role for pair in pairs if not pair.is_peer_fresh]
    if deaf and len(nodes) > 1:
        text = (
            f"{serves}, but the nodes do not hear each other (deaf: {' and '.join(deaf)}): mend the link "
            "between their state endpoints"
        )
        return Verdict.of(Reason.PEERS_APART, "; ".join((text, *map(_said, found))))
    if found:
        reason = _OF_FINDING.get(found[0][1].name, Reason.NODE_TROUBLE)
        return Verdict.of(reason, f"{serves}, but {_said(found[0])}")
    return Verdict.of(Reason.SERVED, serves)


def _said(found: tuple[str, Finding]) -> str:
    return f"the {found[0]} says: {found[1]}"


def node_findings(views: Sequence[NodeState]) -> Iterator[tuple[str, Finding]]:
    """What nodes found about themselves, the worst first, in the order of the nodes' table: a fault of one
    node comes before what follows from it at the other.
    """
    found = [(view.pair.role, each) for view in views for each in view.findings or () if not each.service]
    yield from sorted(
        found, key=lambda each: (each[1].severity != "critical", _RANKS.get(each[1].name, len(_RANKS)))
    )


def _judge_inactive(nodes: Sequence[Seen]) -> Verdict:
    """No node says that it serves."""
    silent = " and ".join(seen.endpoint for seen in nodes if seen.view is None)
    views = [seen.view for seen in nodes if seen.view is not None]
    if not views:
        text = (
            f"no node answers at {silent}, so nothing is known of the pair: are the processes up, are "
            "these their addresses from here, and do they list this key?"
        )
        return Verdict.of(Reason.NO_ANSWER, text)
    witness = next(
        (view.pair for view in views if view.pair.is_peer_fresh and view.pair.peer_state == "ACTIVE"), None
    )
    if witness is not None and len(views) == 1:
        where = f"{silent} does not answer this command" if silent else "its endpoint was not asked"
        text = (
            f"the {witness.role} hears that its peer serves, but {where}: the pair is served, and the active "
            "node's address cannot be reached from here, or that node lets no new connections in for want of "
            "descriptors (its log and bstar_descriptors_short tell)"
        )
        return Verdict.of(Reason.ACTIVE_UNREACHABLE, text)
    words = "; ".join(f"the {view.pair.role} is {view.pair.state}: {view.readiness.why}" for view in views)
    standings = [view.readiness.reason for view in views]
    standing = next((each for each in _STANDINGS if each in standings), "stands-by")
    reason, advice = _STANDINGS[standing]
    unheard = f"; {silent} does not answer" if silent else ""
    return Verdict.of(reason, f"no node serves: {words}{unheard}. {advice[0].upper()}{advice[1:]}")


def judge_all(verdicts: Mapping[str, Verdict]) -> Verdict:
    """What to think of several pairs: the code of the worst of them, and what is wrong with each."""
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))
    worst = max(verdicts.values(), key=lambda verdict: _WORSE.index(verdict.code))
    if worst.code == exits.OK:
        return Verdict.of(Reason.SERVED, f"all {len(verdicts)} pairs are served")
    words = [f"{name}: {verdict.why}" for name, verdict in verdicts.items() if verdict.code != exits.OK]
    return Verdict(worst.code, worst.reason, f"{len(words)} of {len(verdicts)} pairs: {'; '.join(words)}")


def strays(fleet: Fleet, by_pair: Mapping[str, Sequence[Seen]]) -> list[Stray]:
    """Services with workers, or with requests that wait, at a pair that they do not belong to."""
    names = list(by_pair)
    found: dict[tuple[str, str], Stray] = {}
    for name, nodes in by_pair.items():
        services = [each for seen in nodes if seen.view is not None for each in seen.view.broker.services]
        for service in services:
            # A name that is not text is shown with escapes, and its pair cannot be computed from those.
            if not (service.workers or service.queued) or "\\x" in service.service:
                continue
            home = names[fleet.place(service.service.encode())]
            known = found.get((service.service, name))
            if home != name and (known is None or known.workers < service.workers):
                found[service.service, name] = Stray(
                    service.service, name, home, service.workers, service.queued
                )
    return [found[key] for key in sorted(found)]


def judge_strays(verdict: Verdict, found: Sequence[Stray]) -> Verdict:
    """The verdict on all pairs, with the strays that were found."""
    return _spoiled(verdict, found, Reason.STRAYS, "but not where clients and workers look for each other: ")


def judge_services(verdict: Verdict, found: Sequence[Trouble]) -> Verdict:
    """The verdict on all pairs, with the services in trouble that were found."""
    return _spoiled(verdict, found, Reason.SERVICE_TROUBLE, "but not all is well with ")


def _spoiled(verdict: Verdict, found: Sequence[Stray | Trouble], reason: Reason, but: str) -> Verdict:
    """A good verdict becomes ``reason`` if something was ``found``; ``but`` precedes the services."""
    if verdict.code != exits.OK or not found:
        return verdict
    services = ", ".join(sorted({each.service for each in found}))
    return Verdict.of(reason, f"{verdict.why}, {but}{services}")


def find_troubles(by_pair: Mapping[str, Sequence[Seen]]) -> list[Trouble]:
    """The services in trouble, by service and pair. What both nodes found the one that serves says."""
    found: dict[tuple[str, str, str], Trouble] = {}
    for pair, nodes in by_pair.items():
        views = [seen.view for seen in nodes if seen.view is not None]
        for view in sorted(views, key=lambda view: not view.pair.is_active):
            for each in view.findings or ():
                if each.service:
                    trouble = Trouble(each.service, pair, each.name, str(each))
                    found.setdefault((each.service, pair, each.name), trouble)
    return sorted(found.values(), key=lambda each: (each.service, each.pair))
