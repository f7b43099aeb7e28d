"""What commands read of a node's state (mmi.state): the fields that they need, and defaults."""

import msgspec

from bstar.records.role import RoleChange
from bstar_broker.core.snapshot import Finding
from bstar_cli.trouble import ServiceView


class _Broker(msgspec.Struct, frozen=True):
    workers: int
    queued: int
    services: list[ServiceView]
    past: list[ServiceView] = []


class _Quorum(msgspec.Struct, frozen=True):
    is_arbiter_heard: bool = False
    is_arbiter_granting: bool = False


class PairView(msgspec.Struct, frozen=True):
    """The node in its pair, and what it knows of its peer."""

    pair: str
    role: str
    state: str
    is_active: bool
    epoch: int
    peer_state: str | None = None
    peer_age_s: float | None = None
    is_peer_fresh: bool = False
    is_peer_gone: bool = False
    quorum: _Quorum | None = None
    clients_cut_off: int = 0
    clients_cut_off_unserved: int = 0
    clients_cut_off_s: float = 0.0
    epoch_error: str = ""
    fronts_apart: str = ""
    paused_for_s: float = 0.0
    pause_why: str = ""
    drained_why: str = ""


class _Loop(msgspec.Struct, frozen=True):
    is_short_of_descriptors: bool = False
    lag_last_s: float = 0.0


class _Disk(msgspec.Struct, frozen=True):
    free_bytes: int = 0
    damaged: int = 0
    damage: str = ""
    error: str = ""


class StoreView(msgspec.Struct, frozen=True):
    """What this command needs of a node's durable store."""

    is_leading: bool
    copies: int
    is_peer_heard: bool = True
    trouble: str = ""
    catch_up: float = 1.0
    lag_entries: int = 0
    pending: int = 0
    running: int = 0
    answered: int = 0
    dead: int = 0
    oldest_pending_s: float = 0.0
    disk: _Disk | None = None


class FrontView(msgspec.Struct, frozen=True):
    """One of a node's fronts: its peers by kind."""

    name: str
    peers: dict[str, int] = {}
    error: str = ""


class _Http(msgspec.Struct, frozen=True):
    error: str = ""


class _Security(msgspec.Struct, frozen=True):
    error: str = ""
    http: _Http | None = None

    @property
    def errors(self) -> str:
        """What is wrong with the files that say who may do what."""
        return "; ".join(error for error in (self.error, self.http.error if self.http else "") if error)


class _Readiness(msgspec.Struct, frozen=True):
    reason: str
    why: str


class NodeView(msgspec.Struct, frozen=True):
    """What this command needs of a node's state; it need not be of the node's own version."""

    version: str
    pair: PairView
    broker: _Broker
    readiness: _Readiness | None = None
    loop: _Loop | None = None
    store: StoreView | None = None
    security: _Security | None = None
    fronts: list[FrontView] = []
    history: list[RoleChange] = []
    findings: list[Finding] | None = None
