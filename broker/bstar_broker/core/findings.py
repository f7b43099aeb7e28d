"""What is wrong at a node, since when, and what to do: the findings of its status, made once, here.

``NODE`` and ``SERVICE`` are the table. Each entry names its finding, its alert (configs/alerts.yml) and what
to do, and a function says in a sentence what is wrong, or nothing. ``bstar status``, ``bstar top`` and the
status page show what the node publishes. ``ELSEWHERE`` names the alerts that a node alone cannot know.

A condition is that of its alert, as one node sees it, without the alert's ``for``: a finding comes no later
than its alert. Where one moment proves nothing (``after_s``), the condition must last. An alert over a window
of time needs earlier counters, and ``Past`` has them. They begin with the node.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from bstar.base.printable import counted, duration
from bstar_broker.core.snapshot import Finding, NodeState, ServiceState

# The node looks so often by itself. Growth within one step is one entry of a window.
FINDINGS_INTERVAL_S: Final = 5.0
_STEP_S: Final = 5.0
_SERVICE_STEP_S: Final = 60.0
# The longest window.
_SPAN_S_MAX: Final = 3_600.0
# Services with windows of their own: as many as have series of their own in the metrics.
_SERVICES_MAX: Final = 200
# A status stays readable; what is worst comes first.
FINDINGS_MAX: Final = 500

# The thresholds of the alerts BstarNoWorkers, BstarRequestStuck, BstarRequestsWait and BstarServiceFails.
UNSERVED_MIN: Final = 3
RUNNING_S_MAX: Final = 300.0
WAITING_S_MAX: Final = 30.0
BAD_MIN: Final = 5
BAD_SHARE_MAX: Final = 14.4 * 0.001

# What to do if this copy may lack something that was acknowledged.
START_OR_FORCE: Final = (
    "start the other node's store, or if its disk is lost: bstar store force --give-up-the-other"
)

_LAG_S_MAX: Final = 0.1
_SYNC_S_MAX: Final = 0.25

# What a node gave back is sent to its peer, and what a client gave up is unwanted: neither says anything
# about the service.
_NEUTRAL: Final = ("returned", "cancelled")
_GOOD: Final = ("answered", "declined")
_BAD: Final = ("failed", "refused", "expired", "poisoned", "lost")
# The windows of a service.
_OF_SERVICE: Final = ("bad", "ended", "workers lost", "poisoned")

State = TypeVar("State", NodeState, ServiceState)

CRITICAL: Final = "critical"
WARNING: Final = "warning"

ELSEWHERE: Final = {
    "BstarTargetDown": "a node that is down says nothing; bstar status says which one does not answer",
    "BstarBothActive": "it takes both nodes, which do not hear each other; bstar status asks both",
    "BstarNoneActive": "it takes both nodes; bstar status asks both and says what they wait for",
    "BstarServiceFailsSlowly": "shares of six hours, of both nodes and across their restarts",
}
"""The alerts that have no finding, and why."""


class Past:
    """How much counters have grown lately, at the node with this ``role``. Bounded: ``_SPAN_S_MAX`` in steps,
    for each key.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.role = ""
        self._last: dict[Hashable, float] = {}
        self._growths: dict[Hashable, deque[tuple[float, float]]] = {}

    def note(self, key: Hashable, count: float, *, before: float = 0.0, step_s: float = _STEP_S) -> None:
        """The counter is ``count`` now. It was ``before`` if it is new; one that went down began again."""
        last = self._last.get(key, before)
        self._last[key] = count
        growth = count if count < last else count - last
        growths = self._growths.setdefault(key, deque())
        while growths and growths[0][0] <= self.now - _SPAN_S_MAX:
            growths.popleft()
        if growth:
            if growths and self.now < growths[-1][0] + step_s:
                at, known = growths.pop()
                growths.append((at, known + growth))
            else:
                growths.append((self.now, growth))

    def grown(self, key: Hashable, span_s: float) -> float:
        """By how much the counter grew in the last ``span_s``."""
        return sum(growth for at, growth in self._growths.get(key, ()) if at > self.now - span_s)

    def forget(self, key: Hashable) -> None:
        """Drop the counter."""
        self._last.pop(key, None)
        self._growths.pop(key, None)


class Entry(NamedTuple, Generic[State]):
    """A finding about the node or about a service. ``why`` says what is wrong, "" if nothing is.

    It must hold for ``after_s``. With ``needs_active`` only the node that serves can know it.
    """

    name: str
    severity: str
    alert: str
    why: Callable[[State, Past], str]
    do: str
    after_s: float = 0.0
    needs_active: bool = False


# --- conditions of the node ---------------------------------------------------------------------------------


def _peer_silent(state: NodeState, _: Past) -> str:
    pair = state.pair
    if pair.is_peer_fresh:
        return ""
    since = "since it started" if pair.peer_age_s is None else f"for {duration(pair.peer_age_s)}"
    fault = f" (its last handshake failed: {pair.peer_fault})" if pair.peer_fault else ""
    return f"it has not heard its peer {since}{fault}"


def _cut_off(state: NodeState, _: Past) -> str:
    pair = state.pair
    clients = counted(pair.clients_cut_off + pair.clients_cut_off_unserved, "client")
    offered = f"{pair.clients_cut_off} of them ask for what workers offer there"
    text = f"{clients} reached only this passive node for {duration(pair.clients_cut_off_s)}; {offered}"
    return text if pair.clients_cut_off or pair.clients_cut_off_unserved else ""


def _flaps(_: NodeState, past: Past) -> str:
    moves = past.grown("moves", 600)
    return f"the active role moved {moves:.0f} times in ten minutes without an order" if moves >= 4 else ""


def _loop_lags(_: NodeState, past: Past) -> str:
    late, all_ = past.grown("late", 120), past.grown("deadlines", 120)
    text = f"its event loop serves {late:.0f} of {all_:.0f} deadlines more than {_LAG_S_MAX:g} s late"
    return text if late > all_ / 100 else ""


def _descriptors_short(state: NodeState, past: Past) -> str:
    if state.loop is not None and state.loop.is_short_of_descriptors:
        return "it lets no new connections in: its process has used nearly all descriptors that it may have"
    return "it ran short of descriptors in the last five minutes" if past.grown("shortages", 300) else ""


def _held_off(_: NodeState, past: Past) -> str:
    return "it holds connections off: too many handshakes fail" if past.grown("held off", 300) else ""


def _journal_trouble(_: NodeState, past: Past) -> str:
    errors, dropped = past.grown("journal errors", 90), past.grown("journal dropped", 90)
    counts = f"{counted(int(errors), 'error')}, {counted(int(dropped), 'record')} dropped in the last 90 s"
    return f"its journal has gaps, or will have ({counts})" if errors or dropped else ""


def _epoch_unsaved(state: NodeState, _: Past) -> str:
    return f"it cannot store its epoch ({state.pair.epoch_error})" if state.pair.epoch_error else ""


def _takeovers_paused(state: NodeState, _: Past) -> str:
    pair = state.pair
    return (
        f"takeovers are paused for {duration(pair.paused_for_s)} more ({pair.pause_why})"
        if pair.is_paused
        else ""
    )


def _fronts_apart(state: NodeState, _: Past) -> str:
    return state.pair.fronts_apart


def _front_down(state: NodeState, _: Past) -> str:
    return "; ".join(
        f"its front {front.name} is down: {front.error}" for front in state.fronts if front.error
    )


def _files_broken(state: NodeState, _: Past) -> str:
    error = "" if state.security is None else state.security.error
    return f"it goes on, and cannot start again as it is: {error}" if error else ""


def _arbiter_silent(state: NodeState, _: Past) -> str:
    quorum = state.pair.quorum
    # A drained node asks for nothing.
    is_well = quorum is None or quorum.is_arbiter_heard or state.pair.is_drained
    return "" if is_well else "the arbiter does not answer it"


def _majority_lost(_: NodeState, past: Past) -> str:
    lost = past.grown("majorities lost", 600)
    return "it stopped serving in the last ten minutes, because no voter confirmed it" if lost else ""


def _one_copy(state: NodeState, _: Past) -> str:
    store = state.store
    if store is None or not store.is_leading or store.copies >= 2:
        return ""
    is_catching_up = store.is_peer_heard and store.catch_up < 1
    far = f" (the other copy has {store.catch_up:.0%} of its way behind it)" if is_catching_up else ""
    return f"durable requests are on this node only{far}"


def _not_leading(state: NodeState, _: Past) -> str:
    store = state.store
    if store is None or store.is_leading or not state.pair.is_active:
        return ""
    if store.disk is not None and store.disk.error:
        return ""  # that is the finding, and to give up the other copy would be wrong
    why = store.trouble.removesuffix(f": {START_OR_FORCE}") or "it is about to begin"
    return f"its durable store does not lead: {why}"


def _store_lags(state: NodeState, _: Past) -> str:
    store = state.store
    if store is None or not store.is_leading or store.lag_s <= 30:
        return ""
    return f"the other copy of the store has been behind for {duration(store.lag_s)}"


def _durable_waits(state: NodeState, _: Past) -> str:
    store = state.store
    if store is None or not store.is_leading or store.oldest_pending_s <= 900:
        return ""
    return f"the oldest durable request that is due has waited for {duration(store.oldest_pending_s)}"


def _dead_letters(state: NodeState, past: Past) -> str:
    """Those that an operator has closed or retried meanwhile need no look."""
    still_dead = 0 if state.store is None else state.store.dead
    dead = min(past.grown("dead letters", 600), still_dead)
    return f"{counted(int(dead), 'new dead letter')} in the last ten minutes" if dead else ""


def _nearly_full(state: NodeState, _: Past) -> str:
    store = state.store
    if store is None:
        return ""
    free_bytes = None if store.disk is None else store.disk.disk_free_bytes
    if free_bytes is not None and free_bytes < 2**30:
        return f"the disk of its store has {free_bytes >> 20} MiB left"
    requests = store.pending + store.answered + store.dead + store.cancelled
    used = max(store.octets / store.octets_max, requests / store.requests_max)
    pending = f"{store.pending} of its {counted(requests, 'request')} are pending"
    return f"its durable store is {used:.0%} full, {pending}" if used > 0.9 else ""


def _sync_slow(_: NodeState, past: Past) -> str:
    slow, all_ = past.grown("slow syncs", 300), past.grown("syncs", 300)
    text = f"{slow:.0f} of {all_:.0f} syncs of its store's disk took more than {_SYNC_S_MAX:g} s"
    return text if slow > all_ / 100 else ""


def _damaged(state: NodeState, past: Past) -> str:
    disk = state.store.disk if state.store is not None else None
    if disk is None:
        return ""
    if disk.error:
        return f"its store does not work ({disk.error})"
    if disk.damaged:
        return f"its store is damaged ({disk.damage or counted(disk.damaged, 'record')})"
    return f"its store was damaged ({disk.repaired}) and is repaired" if past.grown("repairs", 3_600) else ""


NODE: Final[tuple[Entry[NodeState], ...]] = (
    Entry("store-damaged", CRITICAL, "BstarStoreDamaged", _damaged,
              "mend the disk, and see that the other node runs"),
    Entry("store-waits", CRITICAL, "BstarStoreNotLeading", _not_leading,
              f"wait if it begins or takes over what the peer's has; otherwise {START_OR_FORCE}"),
    Entry("store-alone", CRITICAL, "BstarStoreOneCopy", _one_copy,
              "wait if its copy catches up; otherwise start the other node, or mend the way to store.link"),
    Entry("clients-cut-off", CRITICAL, "BstarClientsCutOff", _cut_off,
              "mend their way to the active node, or stop that one"),
    Entry("front-down", CRITICAL, "BstarFrontDown", _front_down,
              "read the node's log, and restart the node if the front stays down"),
    Entry("peer-silent", WARNING, "BstarPeerLinkDown", _peer_silent,
              "start the peer, end its drain (bstar drain --undo), or mend the link between the state "
              "endpoints"),
    Entry("arbiter-silent", WARNING, "BstarArbiterSilent", _arbiter_silent, "start the arbiter"),
    Entry("majority-lost", WARNING, "BstarMajorityLost", _majority_lost,
              "mend its links to the peer and the arbiter"),
    Entry("flapping", WARNING, "BstarFlapping", _flaps, "find what pauses the nodes or cuts their link"),
    Entry("epoch-unsaved", WARNING, "BstarEpochUnsaved", _epoch_unsaved,
              "make room in its state_dir, or mend that disk or folder"),
    Entry("journal-trouble", WARNING, "BstarJournalTrouble", _journal_trouble,
              "make room on the disk of journal.directory, or mend it"),
    Entry("security-files-broken", WARNING, "BstarSecurityFilesBroken", _files_broken,
              "correct that file before a restart"),
    Entry("descriptors-short", WARNING, "BstarDescriptorsShort", _descriptors_short,
              "raise the limit, or find out who connects so often"),
    Entry("held-off", WARNING, "BstarHeldOff", _held_off, "find the peers whose keys are wrong"),
    Entry("loop-lags", WARNING, "BstarLoopLag", _loop_lags, "find what takes its CPU", after_s=60.0),
    Entry("fronts-apart", WARNING, "BstarFrontsApart", _fronts_apart, "give both nodes the same fronts"),
    Entry("takeovers-paused", WARNING, "BstarTakeoversPaused", _takeovers_paused,
              "bstar resume ends that"),
    Entry("store-lags", WARNING, "BstarStoreLags", _store_lags, "look at the other node's disk and link"),
    Entry("store-nearly-full", WARNING, "BstarStoreNearlyFull", _nearly_full,
              "make room on the disk if it is short; else start workers for what is pending, close what was "
              "fetched, or raise store.bytes_max or store.requests_max"),
    Entry("store-sync-slow", WARNING, "BstarStoreSyncSlow", _sync_slow,
              "find what else writes to that disk", after_s=300.0),
    Entry("durable-waits", WARNING, "BstarDurableRequestsWait", _durable_waits,
              "start workers for its service"),
    Entry("dead-letters", WARNING, "BstarDeadLetters", _dead_letters,
              "look at them: bstar durable ls --state dead"),
)  # fmt: skip
"""The findings about the node, the worst first."""


# --- conditions of a service --------------------------------------------------------------------------------


def _ended(service: ServiceState) -> tuple[int, dict[str, int]]:
    """How many requests of the last five minutes ended, and the outcomes that are bad."""
    ended = {outcome: count for outcome, count in service.recent.items() if outcome not in _NEUTRAL}
    return sum(ended.values()), {outcome: count for outcome, count in ended.items() if outcome not in _GOOD}


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def _paused(service: ServiceState, past: Past) -> str:
    if not service.pause_why:
        return ""
    rest = f" for {duration(service.paused_for_s)} more" if service.paused_for_s else ""
    return f"paused at the {past.role}{rest} by {service.pause_why}; {counted(service.queued)} waiting"


def _drained(service: ServiceState, _: Past) -> str:
    if not service.drained or service.drained != service.workers:
        return ""
    workers = "its worker is" if service.workers == 1 else f"all {service.workers} workers are"
    return f"{workers} drained; {counted(service.queued)} waiting"


def _no_worker(service: ServiceState, past: Past) -> str:
    bad = _ended(service)[1]
    lately = max(sum(bad.values()), past.grown(("bad", service.service), 900))
    if service.workers or not (service.queued or lately >= UNSERVED_MIN):
        return ""
    ago = f", {_words(bad)} in the last five minutes" if bad else ""
    return f"it has no worker; {counted(service.queued)} waiting{ago}"


def _stuck(service: ServiceState, past: Past) -> str:
    if service.oldest_running_s <= RUNNING_S_MAX or _no_worker(service, past):
        return ""
    return f"a worker has held a request for {duration(service.oldest_running_s)}"


def _waits(service: ServiceState, past: Past) -> str:
    if service.oldest_waiting_s <= WAITING_S_MAX or service.pause_why or _no_worker(service, past):
        return ""
    age = duration(service.oldest_waiting_s)
    can = service.bound or f"{service.idle} of {service.workers} workers can take one"
    return f"the oldest of {counted(service.queued)} has waited for {age}; {can}"


def _fails(service: ServiceState, past: Past) -> str:
    """Nothing while it is paused: what expires or is refused then is no fault of its workers."""
    total, bad = _ended(service)
    count = sum(bad.values())
    if service.pause_why or _no_worker(service, past):
        return ""
    is_bad = count > BAD_SHARE_MAX * total
    if bad.get("poisoned") or (count >= BAD_MIN and is_bad):
        told = f"{count} of {counted(total)} ended badly or were refused in the last five minutes"
        return f"{told} ({_words(bad)})"
    name = service.service
    hour, all_ = past.grown(("bad", name), 3_600), past.grown(("ended", name), 3_600)
    if is_bad and hour >= BAD_MIN and hour > BAD_SHARE_MAX * all_:
        return f"{hour:.0f} of {counted(int(all_))} ended badly or were refused in the last hour"
    return ""


def _workers_lost(service: ServiceState, past: Past) -> str:
    lost = past.grown(("workers lost", service.service), 1_800)
    return f"{lost:.0f} workers went away with requests in half an hour" if lost >= 3 else ""


def _poison(service: ServiceState, past: Past) -> str:
    count = past.grown(("poisoned", service.service), 600)
    return f"{counted(int(count))} ended as poison in the last ten minutes" if count else ""


SERVICE: Final[tuple[Entry[ServiceState], ...]] = (
    Entry("paused", WARNING, "BstarServicePaused", _paused, "bstar service resume ends that"),
    Entry("paused", WARNING, "", _drained, "bstar workers resume ends that", needs_active=True),
    Entry("no-worker", CRITICAL, "BstarNoWorkers", _no_worker, "start one", needs_active=True),
    Entry("fails", CRITICAL, "BstarServiceFails", _fails,
              "look at its workers' logs; of refused ones at bstar_drops_total; expired ones waited for a "
              "worker, or in a pause", needs_active=True),
    Entry("stuck", WARNING, "BstarRequestStuck", _stuck, "does its handler hang?", needs_active=True),
    Entry("waits", WARNING, "BstarRequestsWait", _waits, "start more workers", needs_active=True),
    Entry("workers-lost", WARNING, "BstarWorkersLost", _workers_lost,
          "find what ends them: their logs, the kernel's"),
    Entry("poison", WARNING, "BstarPoisonRequests", _poison, "find the request that ends its workers"),
)  # fmt: skip
"""The findings about a service. An operator's drain of all workers has no alert."""


# --- looking ------------------------------------------------------------------------------------------------


class Findings:
    """Looks at a node's states one after the other, and remembers what the windows need."""

    def __init__(self) -> None:
        self._past = Past()
        # Since when each condition has held, by name and service.
        self._since: dict[tuple[str, str], float] = {}
        self._tracked: set[str] = set()
        self._activations = 0
        self._epoch = 0
        self._moves = 0
        self._ordered = 0
        self._ordered_seen = 0
        self._held_off = 0

    def look(self, state: NodeState, now: float) -> list[Finding]:
        """What is wrong now, the worst first."""
        self._past.now, self._past.role = now, state.pair.role
        self._note_node(state)
        self._note_services((*state.broker.services, *state.broker.past))
        found = list(self._found(state))
        keys = [(each.name, each.service) for _, each in found]
        self._since = {key: self._since.get(key, now) for key in keys}
        findings = [
            msgspec.structs.replace(each, for_s=round(now - self._since[key], 3))
            for (after_s, each), key in zip(found, keys, strict=True)
            if now - self._since[key] >= after_s
        ]
        findings.sort(key=lambda each: (each.severity != CRITICAL, each.service != "", each.service))
        return findings[:FINDINGS_MAX]

    def _found(self, state: NodeState) -> Iterator[tuple[float, Finding]]:
        """What holds now, and how long it must have held."""
        is_active = state.pair.is_active
        yield from _of(NODE, state, self._past, is_active=is_active)
        for service in (*state.broker.services, *state.broker.past):
            yield from _of(SERVICE, service, self._past, service.service, is_active=is_active)

    def _note_node(self, state: NodeState) -> None:
        note, pair, loop, store = self._past.note, state.pair, state.loop, state.store
        activations = sum(count for name, count in pair.transitions.items() if name.endswith("->ACTIVE"))
        # Each activation of either node raises the epoch. The first one that is seen is old.
        is_moved = 0 < self._epoch < pair.epoch_seen
        moves = max(activations - self._activations, int(is_moved))
        # A role that was given up on purpose may arrive after this look.
        self._ordered += pair.ordered_moves - self._ordered_seen
        self._moves += moves - min(moves, self._ordered)
        if moves or pair.is_active:
            self._ordered = 0
        self._activations, self._epoch = activations, pair.epoch_seen
        self._ordered_seen = pair.ordered_moves
        note("moves", self._moves)
        if pair.quorum is not None:
            note("majorities lost", pair.quorum.majorities_lost)
        if loop is not None:
            note("deadlines", sum(loop.lag_counts))
            note("late", _above(loop.lag_bounds_s, loop.lag_counts, _LAG_S_MAX))
            note("shortages", loop.descriptor_shortages)
            if loop.connections is not None:
                far = loop.connections
                self._held_off += int(far.networks_held_off > 0 or far.are_all_held_off)
                note("held off", self._held_off)
        if state.journal is not None:
            note("journal errors", state.journal.errors)
            note("journal dropped", state.journal.dropped)
        if store is not None:
            dead = store.ended.get("dead", 0)
            # Some of the first ones may be of an earlier run, which the table brings.
            note("dead letters", dead, before=dead)
            if store.disk is not None:
                note("repairs", store.disk.repairs)
                note("syncs", sum(store.disk.sync_counts))
                note("slow syncs", _above(store.disk.sync_bounds_s, store.disk.sync_counts, _SYNC_S_MAX))

    def _note_services(self, services: Sequence[ServiceState]) -> None:
        for service in services:
            name, bad = service.service, sum(getattr(service, outcome) for outcome in _BAD)
            if name not in self._tracked:
                if not (bad or service.workers_lost) or len(self._tracked) >= _SERVICES_MAX:
                    continue
                self._tracked.add(name)
            good = sum(getattr(service, outcome) for outcome in _GOOD)
            total, recent = bad + good, _ended(service)
            counts = (
                ("bad", bad, bad - sum(recent[1].values())),
                ("ended", total, total - recent[0]),
                ("workers lost", service.workers_lost, 0),
                ("poisoned", service.poisoned, 0),
            )
            for what, count, before in counts:
                self._past.note((what, name), count, before=before, step_s=_SERVICE_STEP_S)
        for name in self._tracked - {service.service for service in services}:
            self._tracked.remove(name)
            for what in _OF_SERVICE:
                self._past.forget((what, name))


def _above(bounds: Sequence[float], counts: Sequence[int], bound: float) -> int:
    """How many of a histogram's observations are above a bound; ``counts`` has one more, for the rest."""
    return sum(count for lower, count in zip((0.0, *bounds), counts, strict=True) if lower >= bound)


def _of(
    entries: Iterable[Entry[State]], state: State, past: Past, service: str = "", *, is_active: bool
) -> Iterator[tuple[float, Finding]]:
    for entry in entries:
        if (is_active or not entry.needs_active) and (why := entry.why(state, past)):
            yield entry.after_s, Finding(entry.name, entry.severity, entry.alert, why, entry.do, service)
