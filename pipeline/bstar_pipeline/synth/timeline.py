"""The life of one synthetic pair: its processes, who served when, and what each fault left in the journals.

The order and the sentences of the records are those of the Binary Star's rules; only time is made up.
"""

import random
from dataclasses import dataclass
from typing import Any

from bstar import records
from bstar.errors import ConfigurationError
from bstar_pipeline.synth.cast import ROLES, Cast
from bstar_pipeline.synth.process import Phase, Process, Serving, Stretch
from bstar_pipeline.synth.settings import CALM_S, EDGE_S, Incident, SynthSettings
from bstar_pipeline.synth.traffic import Rate, Traffic
from bstar_pipeline.synth.truth import TruthIncident

# How long a written record may wait in a process's buffer, and is lost with a kill.
_UNFLUSHED_US = 40_000


@dataclass(slots=True)
class Interruption:
    """Requests caught by an incident: ``old`` served until ``at_us``, ``new`` from ``resumed_us``; ``old``
    woke at ``woke_us`` (a pause), gave them back at once (``is_orderly``), or never came back.
    """

    at_us: int
    resumed_us: int
    old: Serving
    new: Serving
    woke_us: int | None = None
    is_orderly: bool = False


class Timeline:
    """Plays the settings' incidents of pair number ``number`` in order. Read the attributes afterwards."""

    def __init__(
        self, settings: SynthSettings, number: int, traffic: Traffic, incidents: list[Incident]
    ) -> None:
        self.settings = settings
        self.traffic = traffic
        self.pair = settings.pair_name if settings.pairs == 1 else f"{settings.pair_name}-{number}"
        self.start_us = Rate(settings).start_us
        self.end_us = self.start_us + round(settings.span_s * 1e6)
        self.stretches: list[Stretch] = []
        self.truth: list[TruthIncident] = []
        self.interruptions: list[Interruption] = []
        self._chance = random.Random(f"{settings.seed}/{number}/timeline")  # noqa: S311 - data for tests
        self._cast = Cast(settings, self.pair, self.start_us, self._chance)
        self.processes = self._cast.processes
        self._up: dict[str, Process] = {}
        self._active = "primary"
        self._epoch = 0
        self._serving_since: int | None = None
        self.clients: list[Process] = []
        self.workers: list[Process] = []

        self._step_clock()
        self._begin()
        calm_from_s = EDGE_S
        for incident in sorted(incidents, key=lambda one: one.at_s):
            if incident.at_s < calm_from_s or incident.at_s + incident.length_s + EDGE_S > settings.span_s:
                raise ConfigurationError(
                    f"{incident.kind} at {incident.at_s} s does not fit: incidents need {CALM_S:.0f} s "
                    f"between them and {EDGE_S:.0f} s to either end of the journal"
                )
            calm_from_s = incident.at_s + incident.length_s + CALM_S
            self._play(incident)
        self._finish()

    # --- the pair's life ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        t = self.start_us
        primary = self._start("primary", t)
        backup = self._start("backup", t + 50_000)
        primary.note(t + 80_000, records.PeerSeen, peer="BACKUP", peer_boot=backup.boot)
        self._epoch = 1
        self._change(
            primary, t + 80_000, "PRIMARY", "ACTIVE", "PEER_BACKUP", "The backup waits for us to begin."
        )
        backup.note(t + 81_000, records.PeerSeen, peer="PRIMARY", peer_boot=primary.boot)
        self._change(
            backup, t + 82_000, "BACKUP", "PASSIVE", "PEER_ACTIVE", "The primary serves.", peer="ACTIVE"
        )
        self._serving_since = t + 80_000
        if self.settings.has_client_journals:
            self.clients = [
                self._cast.app(f"client-{k}", "client", t + 100_000 + k, k)
                for k in range(self.settings.client_processes)
            ]
        if self.settings.has_worker_journals:
            self.workers = [
                self._cast.app(one.name, "worker", t + 100_000 + k, k, self.traffic.services[one.service])
                for k, one in enumerate(self.traffic.workers)
            ]
        for role in ROLES:
            self._meet(role, t + 120_000)
        for client in self.clients:
            client.note(
                t + 130_000,
                records.ActiveFound,
                endpoint=self._cast.endpoint(self._active),
                epoch=self._epoch,
            )
        self._tell("start", primary, t, taken=t + 80_000, detected=t + 80_000, ended=t + 81_000)

    def _play(self, incident: Incident) -> None:
        at = self.start_us + round(incident.at_s * 1e6)
        hit = self._active if incident.target == "active" else _other(self._active)
        if incident.kind in ("pause", "partition", "both-active") and not incident.duration_s:
            raise ConfigurationError(f"a {incident.kind} needs duration_s")
        if (
            incident.kind != "crash"
            and len(self._up) < 2
            and not (incident.kind == "stop" and hit in self._up)
        ):
            raise ConfigurationError(
                f"{incident.kind} at {incident.at_s} s: a node is down and was not started again"
            )
        if hit not in self._up:
            raise ConfigurationError(
                f"{incident.kind} at {incident.at_s} s: the {incident.target} node is down"
            )
        length = round(incident.length_s * 1e6)
        if incident.kind == "crash":
            self._crash(hit, at, incident)
        elif incident.kind == "stop":
            self._stop(hit, at, incident)
        elif incident.kind == "pause":
            self._pause(hit, at, at + length)
        elif incident.kind == "handover":
            self._handover(at)
        elif incident.kind == "partition":
            self._partition(at, at + length)
        else:
            self._both_active(at, length)

    def _crash(self, role: str, at: int, incident: Incident) -> None:
        dead = self._up.pop(role)
        dead.end, dead.ended_us = "kill", at
        dead.lost_from_us = at - self._chance.randrange(_UNFLUSHED_US)
        if sum(one.kind == "crash" for one in self.truth) % 2 == 0:
            dead.torn = b'{"kind":"pulse","state":"ACTIVE","epo'
        heard = at - self._chance.randrange(self.settings.heartbeat_us)
        survivor = self._up.get(_other(role))
        lost_at = heard + self.settings.failover_timeout_us
        if incident.is_refused:
            lost_at = at + self._chance.randrange(2_000, 20_000)
        taken = None
        if survivor is not None:
            self._lose_peer(survivor, lost_at, heard, "gone" if incident.is_refused else "silent")
        self._break_connections(role, at)
        if role == self._active:
            if survivor is None:
                raise ConfigurationError(f"crash at {incident.at_s} s: nobody is left to serve")
            taken = self._take_over(dead, survivor, at, lost_at + self._moment(), "CLIENT_REQUEST", "silent")
        back = self._restart(dead, incident)
        self._tell(
            "crash",
            dead,
            at,
            taken=taken,
            detected=min(lost_at, at + 1_000 if self.clients else lost_at),
            ended=back,
        )

    def _stop(self, role: str, at: int, incident: Incident) -> None:
        ended = self._up.pop(role)
        ended.note(at, records.Stopping)
        survivor = self._up.get(_other(role))
        taken = None
        if role == self._active:
            if survivor is None:
                raise ConfigurationError(f"stop at {incident.at_s} s: nobody is left to serve")
            taken = self._give_up(ended, survivor, at, "LEAVE", "This process is about to end.")
            self._lose_peer(survivor, taken, taken - 500, "left")
            lost_at = taken
        else:
            heard = at - self._chance.randrange(self.settings.heartbeat_us)
            lost_at = heard + self.settings.failover_timeout_us
            if survivor is not None:
                self._lose_peer(survivor, lost_at, heard, "silent")
        ended.end, ended.ended_us = "stop", at + 6_000
        ended.note(at + 5_000, records.Stopped, reason="SIGTERM")
        self._break_connections(role, at + 6_000, "the peer closed the connection")
        back = self._restart(ended, incident)
        self._tell("stop", ended, at, taken=taken, detected=lost_at, ended=back)

    def _pause(self, role: str, at: int, woke: int) -> None:
        node, peer = self._up[role], self._up[_other(role)]
        heard = at - self._chance.randrange(self.settings.heartbeat_us)
        lost_at = heard + self.settings.failover_timeout_us
        node.away.append((at, woke))
        node.note(woke, records.Stalled, gap_us=woke - at)
        if woke <= lost_at:
            # Too short for anybody to notice: no incident, and the requests in hand only took longer.
            if role == self._active:
                self._rest(node, at, woke)
            return
        self._lose_peer(peer, lost_at, heard, "silent")
        taken = None
        if role == self._active:
            taken = self._take_over(node, peer, at, lost_at + self._moment(), "CLIENT_REQUEST", "silent")
            if taken > woke:
                raise ConfigurationError(
                    f"a pause of {(woke - at) / 1e6} s is too short for a takeover: make it longer"
                )
            self.interruptions[-1].woke_us = woke
            self._change(
                node, woke, "ACTIVE", "PASSIVE", "STALL", "We were away; the peer may have taken over.",
                epoch=self.interruptions[-1].old.epoch, peer="ACTIVE",
            )  # fmt: skip
            node.note(woke, records.PeerAsked, text="We were away; the peer may have taken over.")
        else:
            node.note(woke, records.PeerAsked, text="We were away; what we know of the peer is old.")
        peer.note(woke + 1_000, records.PeerSeen, peer="PASSIVE", peer_boot=node.boot)
        self._tell("pause", node, at, taken=taken, detected=lost_at, ended=woke)

    def _handover(self, at: int) -> None:
        old, new = self._up[self._active], self._up[_other(self._active)]
        taken = self._give_up(old, new, at, "HANDOVER", "The operator asked for it.")
        self._tell("handover", old, at, taken=taken, detected=taken, ended=taken)

    def _partition(self, at: int, healed: int) -> None:
        self._silence(at, healed)
        node = self._up[self._active]
        self._tell(
            "partition", node, at, detected=at + self.settings.failover_timeout_us, ended=healed, taken=None
        )

    def _both_active(self, at: int, length: int) -> None:
        old, new = self._up[self._active], self._up[_other(self._active)]
        old_epoch = self._epoch
        voted = at + self.settings.failover_timeout_us + self._moment()
        healed = voted + length
        self._silence(at, healed)
        taken = self._take_over(old, new, voted, voted, "CLIENT_REQUEST", "silent", caught=False)
        self._change(
            old, healed, "ACTIVE", "PASSIVE", "PEER_ACTIVE", "Both are active; the peer's claim is better.",
            epoch=old_epoch, peer="ACTIVE",
        )  # fmt: skip
        self._tell(
            "partition", old, at, taken=taken, detected=at + self.settings.failover_timeout_us, ended=healed
        )
        self._tell("both-active", old, voted, taken=voted, detected=healed, ended=healed)

    def _finish(self) -> None:
        self._rest(self._up[self._active], self.end_us, self.end_us)
        for process in self.processes:
            for step_at, step in process.machine.steps:
                if process.started_us < step_at < (process.ended_us or self.end_us):
                    process.note(step_at, records.ClockStepped, step_us=step)
        for process in self.processes:
            if not process.end:
                process.ended_us = self.end_us

    # --- what the pair does ---------------------------------------------------------------------------------

    def _start(self, role: str, at: int) -> Process:
        process = self._up[role] = self._cast.node(role, at, self._epoch)
        return process

    def _restart(self, dead: Process, incident: Incident) -> int | None:
        """Start the node again, as the passive one."""
        if incident.duration_s is None:
            return None
        at = dead.ended_us + round(incident.length_s * 1e6)
        role, text = dead.node, f"The {_other(dead.node)} serves."
        if role == "primary":
            text = "The backup took over; this node stands by."
        dead.is_followed = True
        process = self._start(role, at)
        active = self._up[_other(role)]
        process.note(at + 20_000, records.PeerSeen, peer="ACTIVE", peer_boot=active.boot)
        self._change(process, at + 20_000, role.upper(), "PASSIVE", "PEER_ACTIVE", text, peer="ACTIVE")
        active.note(at + 21_000, records.PeerSeen, peer=role.upper(), peer_boot=process.boot)
        self._meet(role, at + 30_000)
        return at

    def _meet(self, role: str, at: int) -> None:
        """Clients and workers connect to a node."""
        node = self._up[role]
        for k, worker in enumerate(self.traffic.workers):
            node.note(
                at + 100 * k,
                records.WorkerRegistered,
                worker=worker.routing_id,
                service=self.traffic.services[worker.service],
                dialect="native",
                credit=self.settings.credit,
            )
        for process in self.workers:
            process.note(at, records.Registered, endpoint=self._cast.endpoint(role))
        for process in self.clients:
            process.note(at, records.Connected, endpoint=self._cast.endpoint(role))

    def _break_connections(self, role: str, at: int, reason: str = "the connection was reset") -> None:
        endpoint = self._cast.endpoint(role)
        for kind, processes in ((records.Unregistered, self.workers), (records.Disconnected, self.clients)):
            for process in processes:
                process.note(at + self._moment() // 4, kind, endpoint=endpoint, reason=reason)

    def _lose_peer(self, node: Process, at: int, heard: int, reason: str) -> None:
        node.note(at, records.PeerLost, reason=reason, silent_us=at - heard)

    def _silence(self, at: int, healed: int) -> None:
        """The nodes do not hear each other from ``at`` to ``healed``."""
        for role in ROLES:
            heard = at - self._chance.randrange(self.settings.heartbeat_us)
            self._lose_peer(self._up[role], heard + self.settings.failover_timeout_us, heard, "silent")
            peer = self._up[_other(role)]
            peer_state = "ACTIVE" if peer.node == self._active else "PASSIVE"
            self._up[role].note(healed, records.PeerSeen, peer=peer_state, peer_boot=peer.boot)

    def _take_over(
        self, old: Process, new: Process, at: int, taken: int, event: str, why: str, *, caught: bool = True
    ) -> int:
        """``new`` serves from ``taken`` because ``old`` is silent since ``at``."""
        old_epoch = self._epoch
        self._rest(old, old.lost_from_us or at, taken, leaves=True)
        self._epoch = _next_epoch(new.node, old_epoch)
        self._change(new, taken, "PASSIVE", "ACTIVE", event, f"The peer is {why}: failover.", votes=1)
        self._active = new.node
        if caught:
            gap = Interruption(at, taken, Serving(old, old_epoch), Serving(new, self._epoch))
            self.interruptions.append(gap)
        self._follow(old, new, at + self._moment(), taken)
        return taken

    def _give_up(self, old: Process, new: Process, at: int, event: str, text: str) -> int:
        """``old`` hands the role to ``new``."""
        taken = at + 1_000 + self._moment() // 8
        old_epoch = self._epoch
        self._rest(old, at, taken, leaves=True)
        self._change(old, at, "ACTIVE", "PASSIVE", event, text, epoch=old_epoch, peer="PASSIVE")
        self._epoch = _next_epoch(new.node, old_epoch)
        self._change(
            new, taken, "PASSIVE", "ACTIVE", "PEER_PASSIVE", "The peer gave us the role.", peer="PASSIVE"
        )
        self._active = new.node
        caught = Interruption(at, taken, Serving(old, old_epoch), Serving(new, self._epoch), is_orderly=True)
        self.interruptions.append(caught)
        self._follow(old, new, at + 500, taken)
        return taken

    def _follow(self, old: Process, new: Process, lost: int, found: int) -> None:
        was, now = self._cast.endpoint(old.node), self._cast.endpoint(new.node)
        for client in self.clients:
            lost_at = min(lost, found)
            reason = "the node does not answer"
            client.note(
                lost_at, records.ActiveLost, endpoint=was, reason=reason, outstanding=self.settings.caught
            )
            client.note(found + 200, records.ActiveFound, endpoint=now, epoch=self._epoch)
            client.note(
                found + 200,
                records.FailedOver,
                endpoint=now,
                from_endpoint=was,
                reason=reason,
                epoch=self._epoch,
                outstanding=self.settings.caught,
                gap_us=found + 200 - lost_at,
            )

    def _rest(self, node: Process, until: int, again: int, *, leaves: bool = False) -> None:
        """``node`` finishes nothing from ``until`` to ``again``; who serves then goes on from there."""
        assert self._serving_since is not None
        # A moment for the requests that are under way at the ends of a stretch.
        stretch = Stretch(self.processes.index(node), self._serving_since, until, self._epoch)
        self.stretches.append(stretch)
        self._serving_since = again + (20_000 if leaves else 1_000)

    def _change(
        self,
        node: Process,
        at: int,
        old: str,
        new: str,
        event: str,
        text: str,
        *,
        epoch: int | None = None,
        **more: Any,
    ) -> None:
        epoch = self._epoch if epoch is None else epoch
        node.note(at, records.StateChanged, old=old, new=new, event=event, text=text, epoch=epoch, **more)
        if new == "ACTIVE":
            node.note(at, records.Activated, epoch=epoch, text=text)
        elif old == "ACTIVE":
            node.note(at, records.Deactivated, epoch=epoch, text=text)
        node.phases.append(Phase(at, new, epoch))

    def _step_clock(self) -> None:
        step = self.settings.clock_step_us
        if not step:
            return
        machine = self._cast.machines["primary"]
        span = self.end_us - self.start_us
        machine.steps = [(self.start_us + span // 2, step), (self.start_us + span * 3 // 4, -step)]

    def _tell(
        self, kind: str, node: Process, began: int, *, taken: int | None, detected: int, ended: int | None
    ) -> None:
        successor = _other(node.node) if taken is not None and kind != "start" else ""
        epoch = self._epoch
        self.truth.append(
            TruthIncident(
                pair=self.pair,
                kind=kind,
                node=node.node,
                boot=node.boot,
                began_at_us=began,
                ended_at_us=ended,
                detected_at_us=detected,
                taken_over_at_us=taken,
                successor=successor,
                epoch=epoch,
            )
        )

    def _moment(self) -> int:
        return self._chance.randrange(2_000, 20_000)


def _other(role: str) -> str:
    return "backup" if role == "primary" else "primary"


def _next_epoch(role: str, epoch: int) -> int:
    """Odd ones are the primary's, even ones the backup's."""
    after = epoch + 1
    return after if (after % 2 == 1) == (role == "primary") else after + 1
