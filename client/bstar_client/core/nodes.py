"""A native client's view of its nodes: their connections, their status, and which one gets a vote.

A node says after how long a request could make it active. The client stores that as a time of its own clock,
because a status ages.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from bstar.wire import native
from bstar.wire.messages import NodeStatus
from bstar_client.core.candidacy import ACTIVE, Candidacy
from bstar_client.core.events import Disconnected
from bstar_client.core.outputs import Announce, Output, Send

_STATE_NAMES = {1: "PRIMARY, starting", 2: "BACKUP, starting", 3: "ACTIVE", 4: "PASSIVE", 5: "ERROR"}

# Used until a node sends the pair's timing. Then the client sends at least four PINGs per failover timeout.
_PING_INTERVAL_S = 0.25
_SILENCE_LIMIT_S = 1.0
PINGS_PER_SILENCE = 4
# A lost node's successor may serve in milliseconds, or after a drain. So PING at once, then at growing
# intervals, at most ten times a second. The search then adds at most half of the time that has passed.
_SEARCH_PAUSE_MIN_S = 0.005
_SEARCH_PAUSE_MAX_S = 0.1
_SEARCH_GROWTH = 1.5
# While nothing is outstanding, PING only so that observers learn of changes.
IDLE_PING_INTERVAL_S = 5.0

UNTRUSTED = (
    "handshake failed: the node is frozen or busy, or one side does not accept the other's key (in the "
    "node's list: its entry and bounds)"
)
# libzmq reports an attempt that was refused and one that found no way, or no answer, as the same event.
_LACKS = {"": "not connected yet", "refused": "refused, or out of reach", "untrusted": UNTRUSTED}


class Endpoint:
    """A node's address, and whether a connection to it is up.

    ``trouble``: how the last connection, or the last attempt to connect, ended. Broken, refused (or out of
    reach), or untrusted (at the handshake: one side does not accept the other's key). Empty at the beginning
    and while connected.
    """

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.is_connected = False
        self.trouble = ""

    def connect(self) -> None:
        """A connection is up."""
        self.is_connected = True
        self.trouble = ""

    def disconnect(self, *, is_untrusted: bool = False) -> list[Output]:
        """The connection broke, or an attempt to connect failed. Only the first time is announced."""
        trouble = "broken" if self.is_connected else "untrusted" if is_untrusted else "refused"
        is_news = not self.trouble or (trouble == "untrusted" != self.trouble)
        self.is_connected = False
        self.trouble = trouble
        return [Announce(Disconnected(self.endpoint, trouble))] if is_news else []

    def restart(self) -> None:
        """There is a new socket, as at the beginning."""
        self.is_connected = False
        self.trouble = ""

    @property
    def lack(self) -> str:
        """Why there is no connection, for an error's text."""
        return _LACKS.get(self.trouble, self.trouble)

    def describe(self) -> str:
        """The node's state, for an error's text."""
        return f"{self.endpoint}: {'connected' if self.is_connected else self.lack}"


def unreached(nodes: Iterable[Endpoint]) -> dict[str, str]:
    """The endpoints without a connection, and why, as their descriptions say it."""
    return {node.endpoint: node.lack for node in nodes if not node.is_connected}


class Node(Endpoint):
    """One node. ``connection`` is a number that is unique within this client."""

    def __init__(self, index: int, endpoint: str, now: float) -> None:
        super().__init__(endpoint)
        self.index = index
        self.connection = 0
        self.is_silent = False
        self.status: NodeStatus | None = None
        self.is_active = False
        self.epoch = 0
        # When the first unanswered PING was sent; None: all are answered.
        self.pinged_at: float | None = None
        self.heard_at: float | None = None
        self.candidacy = Candidacy()
        self.created_at = now

    def can(self, feature: int) -> bool:
        """True if its status has said so (``wire.messages.ALL_FEATURES``)."""
        return self.status is not None and self.status.features & feature != 0

    def forget(self) -> None:
        """Forget the status: a new connection may lead to another process."""
        self.is_silent = False
        self.is_active = False
        self.status = None
        self.pinged_at = None
        self.heard_at = None
        self.candidacy.restart()

    def fall_silent(self) -> None:
        """The node is connected and does not answer."""
        self.is_silent = True
        self.is_active = False

    def hear(self, status: NodeStatus, now: float) -> None:
        """Take the status that the node sent."""
        self.status = status
        self.is_active = status.state == ACTIVE
        if self.is_active:
            self.epoch = status.epoch
        self.candidacy.hear(status, now)

    def describe(self, now: float = 0.0) -> str:
        """The node's state, for an error's text."""
        if not self.is_connected:
            return super().describe()
        if self.is_silent or self.status is None:
            since = self.heard_at if self.heard_at is not None else self.pinged_at
            return f"{self.endpoint}: silent" + (f" for {now - since:.1f} s" if since is not None else "")
        if self.is_active:
            return f"{self.endpoint}: active"
        peer = _STATE_NAMES.get(self.status.peer_state, "silent")
        state = _STATE_NAMES.get(self.status.state, "unknown")
        return f"{self.endpoint}: not active ({state}), its peer {peer}"


class Nodes:
    """All nodes of a client, and when to PING them.

    ``ping_interval_s`` and ``silence_limit_s`` None: derived from what the nodes tell of their own timing.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        now: float,
        ping_interval_s: float | None,
        silence_limit_s: float | None,
    ) -> None:
        self._nodes = [Node(index, endpoint, now) for index, endpoint in enumerate(endpoints)]
        self._connections = 0
        self._is_interval_fixed = ping_interval_s is not None
        self._is_limit_fixed = silence_limit_s is not None
        self.ping_interval_s = ping_interval_s or _PING_INTERVAL_S
        self.silence_limit_s = silence_limit_s or _SILENCE_LIMIT_S
        self.failover_timeout_s = self.silence_limit_s
        self._ping_at = now + IDLE_PING_INTERVAL_S
        self._search_pause_s = _SEARCH_PAUSE_MAX_S
        self._ping = native.encode_ping()

    def __getitem__(self, index: int) -> Node:
        return self._nodes[index]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    def connect(self, node: Node) -> None:
        """A new connection is up; what the last one said is forgotten."""
        self._connections += 1
        node.connection = self._connections
        node.connect()
        node.forget()

    def restart(self, now: float) -> None:
        """There are new sockets, as at the beginning."""
        for node in self._nodes:
            node.restart()
            node.created_at = now
            node.forget()

    def take_epoch(self, epoch: int) -> None:
        """PINGs carry the highest epoch that a node has sent."""
        self._ping = native.encode_ping(epoch=epoch)

    def take_timing(self, status: NodeStatus) -> None:
        """The pair's own timing tells how often to ask, and when silence means loss (BSN-C-07)."""
        timeout_s = status.failover_timeout_ms / 1000
        self.failover_timeout_s = timeout_s
        if not self._is_limit_fixed:
            self.silence_limit_s = timeout_s
        if not self._is_interval_fixed:
            self.ping_interval_s = min(status.heartbeat_ms / 1000, timeout_s / PINGS_PER_SILENCE)

    def describe(self, now: float) -> str:
        """The state of all nodes, for an error's text."""
        return "; ".join(node.describe(now) for node in self._nodes)

    # --- PINGs --------------------------------------------------------------------------------------------

    def ping(self, node: Node, now: float) -> Send:
        """PING one node."""
        if node.pinged_at is None:
            node.pinged_at = now
        return Send(node.index, self._ping)

    def ping_soon(self, now: float) -> None:
        """A request is outstanding again: PING in the normal interval."""
        self._ping_at = min(self._ping_at, now + self.ping_interval_s)

    def start_search(self, now: float) -> None:
        """The client follows no node: PING all of them soon."""
        self._ping_at = now
        self._search_pause_s = _SEARCH_PAUSE_MIN_S
        for node in self._nodes:
            node.candidacy.start_search(now, self.failover_timeout_s)

    def end_search(self) -> None:
        """The client follows a node."""
        for node in self._nodes:
            node.candidacy.end_search()

    def next_deadline(self) -> float:
        """When a PING is due, or a node's silence is loss."""
        due = self._ping_at
        limit_s = self.silence_limit_s
        for node in self._nodes:
            pinged_at = node.pinged_at
            if pinged_at is not None and pinged_at + limit_s < due and not node.is_silent:
                due = pinged_at + limit_s
        return due

    def take_silent(self, now: float) -> list[Node]:
        """The nodes that count as lost from now on."""
        silent = []
        limit_s = self.silence_limit_s
        for node in self._nodes:
            if node.pinged_at is not None and not node.is_silent and now >= node.pinged_at + limit_s:
                node.fall_silent()
                silent.append(node)
        return silent

    def ping_due(self, now: float, *, is_idle: bool, is_found: bool) -> list[Output]:
        """PING all nodes, if it is time. ``is_idle``: no call waits. ``is_found``: a node is followed."""
        if now < self._ping_at:
            return []
        pause_s = self.ping_interval_s
        if is_idle:
            pause_s = IDLE_PING_INTERVAL_S
        elif not is_found:
            pause_s = min(self._search_pause_s, pause_s)
            self._search_pause_s = min(self._search_pause_s * _SEARCH_GROWTH, _SEARCH_PAUSE_MAX_S)
        self._ping_at = now + pause_s
        return [self.ping(node, now) for node in self._nodes if node.is_connected]

    # --- which one ----------------------------------------------------------------------------------------

    def find_active(self) -> Node | None:
        """The node that says that it is active, in the highest epoch."""
        best: Node | None = None
        for node in self._nodes:
            if node.is_active and node.is_connected and (best is None or node.epoch > best.epoch):
                best = node
        return best

    def find_candidate(self, now: float) -> tuple[Node | None, float]:
        """The first node that a request could make active; otherwise when to look again.

        The search first waits for the word of each node that may still come: a node that does not hear its
        peer would take the role from it, although this client can reach the active one.
        """
        candidate: Node | None = None
        vote_at = math.inf
        for node in self._nodes:
            if not node.is_connected:
                settles_at = node.created_at + self.silence_limit_s
                if not node.trouble and now < settles_at:
                    return None, settles_at
            elif node.is_silent:
                continue
            elif node.status is None:
                return None, math.inf  # its PONG is on the way, or its silence will be noticed
            elif now < node.candidacy.vote_at:
                vote_at = min(vote_at, node.candidacy.vote_at)
            elif candidate is None:
                candidate = node
        return candidate, vote_at
