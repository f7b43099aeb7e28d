"""What must hold between keys: inside one configuration, and between the two of a pair.

A key's own type and bounds stand in the schema. Here are the tables of sentences that name two keys or more:
the tuning inequalities with their reasons, what else must hold in one node, what must hold between two, and
what is allowed and often a mistake. A row about many paths is written once and expanded.
"""

import os.path
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, product

import msgspec

from bstar.base.endpoints import Endpoint, parse_endpoint, parse_http_bind
from bstar.base.patterns import is_pattern
from bstar.errors import ConfigurationError
from bstar.settings.fields import FIELDS, flatten
from bstar.settings.fronts import EmqOptions, PppOptions
from bstar.settings.schema import Settings
from bstar.settings.store import MEMORY
from bstar.settings.timing import PROFILES
from bstar.wire.limits import SERVICE_BYTES_MAX

# Two numbers written as decimals and multiplied may differ by less than anyone meant.
_ROUNDING = 1e-9


class Problem(msgspec.Struct, frozen=True):
    """Something wrong with one configuration. The first path is where to look first."""

    paths: tuple[str, ...]
    text: str


class Relation(msgspec.Struct, frozen=True):
    """``left`` must be at least (or more than) ``right``, because of ``reason``."""

    left: str
    is_strict: bool
    right: str
    paths: tuple[str, ...]
    values: Callable[[Settings], tuple[float, float]]
    reason: str

    def holds(self, settings: Settings) -> bool:
        """Whether these settings keep it."""
        left, right = self.values(settings)
        return left > right + _ROUNDING if self.is_strict else left >= right - _ROUNDING

    @property
    def words(self) -> str:
        """The relation as a sentence without its reason."""
        return f"{self.left} must be {'more than' if self.is_strict else 'at least'} {self.right}"


def _worker_expiry_s(settings: Settings) -> float:
    return settings.timing.worker_heartbeat_interval_s * settings.timing.worker_liveness


def _mdp_expiry_s(settings: Settings) -> float:
    return settings.timing.mdp_heartbeat_interval_s * settings.timing.mdp_liveness


def _front_expiry_s(front: PppOptions | EmqOptions) -> float:
    """0 without workers of this front."""
    return 0.0 if front.workers is None else front.heartbeat_interval_s * front.liveness


def _longest_expiry_s(settings: Settings) -> float:
    fronts = settings.fronts
    return max(
        _worker_expiry_s(settings),
        _mdp_expiry_s(settings),
        _front_expiry_s(fronts.ppp),
        _front_expiry_s(fronts.emq),
    )


_PPP = ("fronts.ppp.heartbeat_interval_s", "fronts.ppp.liveness")
_EMQ = ("fronts.emq.heartbeat_interval_s", "fronts.emq.liveness")
_WORKER = ("timing.worker_heartbeat_interval_s", "timing.worker_liveness")
_MDP = ("timing.mdp_heartbeat_interval_s", "timing.mdp_liveness")

RELATIONS = (
    Relation(
        left="failover_timeout_s",
        is_strict=False,
        right="2 × heartbeat_interval_s",
        paths=("timing.failover_timeout_s", "timing.heartbeat_interval_s"),
        values=lambda s: (s.timing.failover_timeout_s, 2 * s.timing.heartbeat_interval_s),
        reason="one late or lost state message must not look like a dead peer",
    ),
    Relation(
        left="failover_timeout_max_s",
        is_strict=False,
        right="failover_timeout_s",
        paths=("timing.failover_timeout_max_s", "timing.failover_timeout_s"),
        values=lambda s: (s.timing.failover_timeout_max_s, s.timing.failover_timeout_s),
        reason="it bounds the timeout, of which the other is the minimum",
    ),
    Relation(
        left="worker_heartbeat_interval_s × worker_liveness",
        is_strict=True,
        right="failover_timeout_max_s",
        paths=(*_WORKER, "timing.failover_timeout_max_s", "timing.failover_timeout_s"),
        values=lambda s: (_worker_expiry_s(s), s.timing.failover_timeout_max_s),
        reason="a pause too short for a failover must not cost the active node its workers",
    ),
    Relation(
        left="mdp_heartbeat_interval_s × mdp_liveness",
        is_strict=True,
        right="failover_timeout_max_s",
        paths=(*_MDP, "timing.failover_timeout_max_s", "timing.failover_timeout_s"),
        values=lambda s: (_mdp_expiry_s(s), s.timing.failover_timeout_max_s),
        reason="a pause too short for a failover must not cost the active node its workers",
    ),
    Relation(
        left="busy_timeout_s",
        is_strict=False,
        right="mdp_heartbeat_interval_s × mdp_liveness",
        paths=("timing.busy_timeout_s", *_MDP),
        values=lambda s: (s.timing.busy_timeout_s, _mdp_expiry_s(s)),
        reason="a worker may be silent for longer while it works than while it waits",
    ),
    Relation(
        left="request_ttl_s",
        is_strict=True,
        right="every worker expiry (…heartbeat_interval_s × …liveness)",
        paths=("timing.request_ttl_s", *_WORKER, *_MDP, *_PPP, *_EMQ),
        values=lambda s: (s.timing.request_ttl_s, _longest_expiry_s(s)),
        reason="a request whose worker died is noticed after that time and must still be alive to go to "
        "another one",
    ),
    Relation(
        left="service_ttl_s",
        is_strict=True,
        right="every worker expiry (…heartbeat_interval_s × …liveness)",
        paths=("timing.service_ttl_s", *_WORKER, *_MDP, *_PPP, *_EMQ),
        values=lambda s: (s.timing.service_ttl_s, _longest_expiry_s(s)),
        reason="a service must not be forgotten while its workers are on their way back",
    ),
    Relation(
        left="queue_bytes_max",
        is_strict=False,
        right="message_bytes_max",
        paths=("limits.queue_bytes_max", "limits.message_bytes_max"),
        values=lambda s: (s.limits.queue_bytes_max, s.limits.message_bytes_max),
        reason="a message that is accepted must fit into an empty queue",
    ),
    Relation(
        left="keep_bytes, unless it is 0,",
        is_strict=False,
        right="rotate_bytes",
        paths=("journal.keep_bytes", "journal.rotate_bytes"),
        values=lambda s: (s.journal.keep_bytes or s.journal.rotate_bytes, s.journal.rotate_bytes),
        reason="a file that has just been closed must not be removed at once",
    ),
    Relation(
        left="backoff_max_s",
        is_strict=False,
        right="backoff_s",
        paths=("store.backoff_max_s", "store.backoff_s"),
        values=lambda s: (s.store.backoff_max_s, s.store.backoff_s),
        reason="it is the longest pause between two attempts, of which the other is the first",
    ),
)


# --- one node ---------------------------------------------------------------------------------------------

# How the names of the broker's own services begin.
_OWN_PREFIXES = ("mmi.", "store.", "titanic.")

# Where the fronts listen.
FRONT_DOORS = [
    path
    for path, field in FIELDS.items()
    if path.startswith("fronts.") and field.expected == "a text or null" and ".http." not in path
]
_HTTP_BINDS = ("http.bind", "fronts.http.bind")
_EMQ_DOORS = [path for path in FRONT_DOORS if path.startswith("fronts.emq.")]
# Where a node listens. At ``store.link`` only the primary does, and the backup connects to it.
_LISTENS = ("endpoints.clients", "endpoints.state", *FRONT_DOORS, "store.link", *_HTTP_BINDS)
_CONNECTS = ("endpoints.peer_state", "endpoints.arbiter", "fronts.http.peer_clients")
_WAY = "the way to store.link"


class _Node:
    """Settings as the rows see them. ``places`` has each address that can be read, by its path, that of the
    link to which a backup connects by ``_WAY``; ``faults`` says what is wrong with the others.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.values = flatten(settings)
        self.places: dict[str, Endpoint] = {}
        self.faults: list[Problem] = []
        for path in (*_LISTENS, *_CONNECTS):
            text = self.values[path]
            is_way = path == "store.link" and settings.role == "backup"
            if text is None:
                continue
            assert isinstance(text, str)
            try:
                self.places[_WAY if is_way else path] = (
                    parse_http_bind(text)
                    if path in _HTTP_BINDS
                    else parse_endpoint(text, bind=path in _LISTENS and not is_way)
                )
            except ValueError as error:
                self.faults.append(Problem((path,), str(error)))

    def has(self, path: str) -> bool:
        """True if the key is not null."""
        return self.values[path] is not None

    def is_open(self, path: str) -> bool:
        """True if the node listens there and others can reach it."""
        return path in self.places and not self.places[path].is_loopback


class Condition(msgspec.Struct, frozen=True):
    """Something is wrong with the first of ``paths``, as ``text`` says, if ``is_broken``."""

    paths: tuple[str, ...]
    is_broken: Callable[[_Node], bool]
    text: str


def _lacks(path: str, given: str, node: _Node) -> bool:
    return node.has(given) and not node.has(path)


def _together(one: str, other: str, why: str) -> list[Condition]:
    """Two rows: each of these keys needs the other."""
    return [
        Condition((missing, given), partial(_lacks, missing, given), f"is missing beside {given}: {why}")
        for missing, given in ((one, other), (other, one))
    ]


def _lacks_key(node: _Node) -> bool:
    return node.has("fronts.http.bind") and node.has("security.key") and not node.has("fronts.http.key")


def _is_plain(node: _Node) -> bool:
    front = node.settings.fronts.http
    return node.is_open("fronts.http.bind") and front.tls_cert is None and not front.allow_plain


def _lacks_door(path: str, node: _Node) -> bool:
    return not node.has(path) and any(map(node.has, _EMQ_DOORS))


def _is_no_service(path: str, prefixes: tuple[str, ...], node: _Node) -> bool:
    name = str(node.values[path])
    return name.startswith(prefixes) or len(name.encode()) > SERVICE_BYTES_MAX


def _is_unprotected(path: str, node: _Node) -> bool:
    return node.is_open(path) and not node.has("security.key") and not node.settings.insecure


def _both(one: str, other: str, test: Callable[[Endpoint, Endpoint], bool]) -> Callable[[_Node], bool]:
    """The test of two addresses of a node; if it lacks one, nothing is wrong."""
    return lambda node: (
        one in node.places and other in node.places and test(node.places[one], node.places[other])
    )


CONDITIONS = (
    *_together("security.principals", "security.key", "a node needs its key and the list of who may connect"),
    Condition(
        ("insecure", "security.key"),
        lambda node: node.has("security.key") and node.settings.insecure,
        "is true beside a key: remove one of them",
    ),
    Condition(
        ("security.orders", "security.key"),
        lambda node: node.settings.security.orders and not node.has("security.key"),
        "is true without security.key: only a key proves who gives an order. Make keys (bstar keys new), or "
        "give orders on the node's machine and remove security.orders",
    ),
    *_together("store.link", "store.directory", "durable requests need a disk and the way to the peer's"),
    Condition(
        ("services",),
        lambda node: not all(map(is_pattern, node.settings.services)),
        "holds what is no pattern: a name, or the beginning of names and *",
    ),
    Condition(
        ("services",),
        lambda node: any(pattern.startswith("mmi.") for pattern in node.settings.services),
        "names services that begin with mmi.: the broker answers these at once, so they have no limits",
    ),
    Condition(
        ("services", "timing.request_ttl_s"),
        lambda node: any(
            (each.expires_s or 0.0) > node.settings.timing.request_ttl_s
            for each in node.settings.services.values()
        ),
        "has an expires_s above timing.request_ttl_s, after which no request waits: lower the one, or raise "
        "the other",
    ),
    # Names that no worker of a front can register for. Without a store, titanic.* are ordinary names.
    *(
        Condition(
            (path,),
            partial(_is_no_service, path, prefixes),
            f"is no name of a worker's service: it has at most {SERVICE_BYTES_MAX} bytes and begins with "
            f"none of {', '.join(prefixes)}",
        )
        for path, prefixes in (
            ("fronts.ppp.service", _OWN_PREFIXES[:2]),
            ("fronts.pzq.service", _OWN_PREFIXES),
            ("fronts.emq.default_queue", _OWN_PREFIXES),
        )
    ),
    *(
        Condition(
            (path,),
            partial(_lacks_door, path),
            "is missing: EventMQ needs a door for clients and one for job managers",
        )
        for path in ("fronts.emq.clients", "fronts.emq.workers")
    ),
    *(
        Condition(
            (path, "store.directory"),
            partial(_lacks, "store.directory", path),
            "needs the durable store, which keeps PZQ's messages: set store.directory and store.link",
        )
        for path in FRONT_DOORS
        if path.startswith("fronts.pzq.")
    ),
    *(
        Condition(
            (path, "security.key", "insecure"),
            partial(_is_unprotected, path),
            "others can reach this address, and without security.key there is no encryption and no "
            "authentication: make keys (bstar keys new), bind 127.0.0.1, or say insecure: true if the "
            "network itself keeps strangers out",
        )
        for path in _LISTENS
        if path != "http.bind"
    ),
    Condition(
        ("fronts.http.peer_clients", "fronts.http.bind"),
        partial(_lacks, "fronts.http.peer_clients", "fronts.http.bind"),
        "is missing beside fronts.http.bind: the front asks both nodes which one serves",
    ),
    Condition(
        ("fronts.http.key", "security.key"),
        _lacks_key,
        "is missing beside security.key: the front needs a key of its own (bstar keys new front --calls '*')",
    ),
    Condition(
        ("fronts.http.key", "security.key"),
        partial(_lacks, "security.key", "fronts.http.key"),
        "is given, and this node has no security.key: remove it, or give the node keys",
    ),
    *_together("fronts.http.tls_cert", "fronts.http.tls_key", "TLS needs the certificate and its key"),
    Condition(
        ("fronts.http.bind", "fronts.http.tls_cert", "fronts.http.allow_plain"),
        _is_plain,
        "others can reach this address, and without TLS tokens and bodies travel in the clear: name a "
        "certificate, bind 127.0.0.1 and put a proxy with TLS before it, or say fronts.http.allow_plain: "
        "true if the network itself keeps strangers out",
    ),
    Condition(
        ("http.bind", "http.allow_remote"),
        lambda node: node.is_open("http.bind") and not node.settings.http.allow_remote,
        "others can reach this address and read status and metrics: bind 127.0.0.1 and put a proxy with "
        "TLS before it, or say http.allow_remote: true if the network itself keeps strangers out",
    ),
    *(
        Condition(
            (path, other),
            _both(path, other, Endpoint.collides),
            f"is the same address as {other}: each needs its own",
        )
        for other, path in combinations(_LISTENS, 2)
    ),
    Condition(
        ("endpoints.arbiter", "endpoints.peer_state"),
        _both(
            "endpoints.arbiter", "endpoints.peer_state", lambda it, peer: it.is_loopback > peer.is_loopback
        ),
        "is an address of this machine only, and the peer, on another one, would ask another arbiter",
    ),
    *(
        Condition(
            ("endpoints.arbiter",),
            _both("endpoints.arbiter", path, Endpoint.collides),
            "is an address that this node itself listens on",
        )
        for path in _LISTENS
    ),
    # Every address and the same port is how two machines are configured alike; only a certain match is wrong.
    Condition(
        ("endpoints.peer_state", "endpoints.state"),
        _both(
            "endpoints.peer_state",
            "endpoints.state",
            lambda peer, state: peer.collides(state) and not state.is_wildcard,
        ),
        "is this node's own endpoints.state: give the other node's",
    ),
)

WARNINGS = (
    Condition(
        (*_PPP, "timing.failover_timeout_max_s"),
        lambda node: (
            node.has("fronts.ppp.workers")
            and _front_expiry_s(node.settings.fronts.ppp) <= node.settings.timing.failover_timeout_max_s
        ),
        "fronts.ppp.heartbeat_interval_s × fronts.ppp.liveness is not above timing.failover_timeout_max_s: a "
        "pause too short for a failover costs the active node its Pirate workers; raise fronts.ppp.liveness",
    ),
    Condition(
        ("store.when_alone", "endpoints.arbiter"),
        lambda node: (
            node.has("store.directory")
            and node.settings.store.when_alone == "accept"
            and not node.has("endpoints.arbiter")
        ),
        "store.when_alone: accept without endpoints.arbiter loses acknowledged requests and fetched answers "
        "of one node if the nodes are cut off from each other and clients reach both; name an arbiter on "
        "both nodes, or say refuse",
    ),
    Condition(
        ("store.directory",),
        lambda node: node.settings.store.is_in_memory,
        "store.directory: memory keeps durable requests in the memory of the two nodes: they survive the end "
        "of one, and are lost when both have ended",
    ),
    Condition(
        ("store.when_alone", "store.directory"),
        lambda node: node.settings.store.is_in_memory and node.settings.store.when_alone == "accept",
        "store.when_alone: accept with store.directory: memory loses what was acknowledged while only one "
        "node ran, if that node ends; say refuse, or name a directory",
    ),
)


def node_problems(settings: Settings) -> Iterator[Problem]:
    """Everything that contradicts itself in one node's settings."""
    for relation in RELATIONS:
        if not relation.holds(settings):
            left, right = relation.values(settings)
            yield Problem(
                relation.paths, f"{relation.words}, but {left:g} is against {right:g}: {relation.reason}"
            )
    node = _Node(settings)
    yield from node.faults
    yield from dict.fromkeys(Problem(row.paths, row.text) for row in CONDITIONS if row.is_broken(node))


def node_warnings(settings: Settings) -> list[str]:
    """What this node's settings allow that its operator may not mean: one sentence each."""
    node = _Node(settings)
    return [row.text for row in WARNINGS if row.is_broken(node)]


# --- two nodes --------------------------------------------------------------------------------------------

# What both nodes must say alike, and why.
_ALIKE = {
    "endpoints.arbiter": "with two arbiters, or with one on one node only, both nodes could serve",
    "pair": "a node ignores the state of another pair",
    "on_dual_active": "one node would step down for a peer that ends itself",
    "on_clients_cut_off": "the role would follow the clients in one direction only",
    "store.when_alone": "what was acknowledged would depend on which node serves",
    "fronts.pzq.service": "consumers would find other messages after a failover",
    "fronts.pzq.ack_timeout_s": "consumers must meet the same after a failover",
    "fronts.pzq.in_flight_max": "consumers must meet the same after a failover",
    "services": "a limit must hold after a failover",
    "security.orders": "orders from elsewhere would be refused after a failover",
    "journal.sample": "a request must be recorded by both nodes or by none",
    **dict.fromkeys(
        ("fronts.ppp.service", "fronts.ppp.heartbeat_interval_s", "fronts.ppp.liveness"),
        "clients and workers must meet the same after a failover",
    ),
    **{
        path: "the nodes compare it and refuse to be a pair"
        if path.startswith(("timing.heartbeat_interval_s", "timing.failover_timeout_"))
        else "clients and workers must meet the same after a failover"
        for path in FIELDS
        if path.startswith("timing.") or (path.startswith("fronts.emq.") and path not in FRONT_DOORS)
    },
}


class _Pair:
    """Two nodes as the rows see them. ``words`` fill a row's text."""

    def __init__(self, one: Settings, other: Settings) -> None:
        self.nodes = (_Node(one), _Node(other))
        self.by_role = {node.settings.role: node for node in self.nodes}
        # Peers that meet on a loopback address live on one machine; otherwise the same port on both is as it
        # should be.
        self.is_one_machine = any(node.places["endpoints.peer_state"].is_loopback for node in self.nodes)
        names = (one.role, other.role) if one.role != other.role else ("the first", "the second")
        self.words: dict[str, object] = {"names": names}
        self.words |= {"ours": self.nodes[0].values, "theirs": self.nodes[1].values}
        self.words |= {role: node.values for role, node in self.by_role.items()}


class PairCondition(msgspec.Struct, frozen=True):
    """Two nodes are no pair, as ``text`` says, if ``is_broken``. ``_Pair.words`` fill the text."""

    is_broken: Callable[[_Pair], bool]
    text: str


def _differ(path: str, pair: _Pair) -> bool:
    return pair.nodes[0].values[path] != pair.nodes[1].values[path]


def _differ_by_profiles(path: str, pair: _Pair) -> bool:
    """True if both nodes have from their profiles what differs."""
    _, _, name = path.partition("timing.")
    profiles = [PROFILES[node.settings.profile] for node in pair.nodes]
    alike = [node.values[path] == each.get(name) for node, each in zip(pair.nodes, profiles, strict=True)]
    return all(alike) and _differ(path, pair)


def _differ_by_keys(path: str, pair: _Pair) -> bool:
    return _differ(path, pair) and not _differ_by_profiles(path, pair)


def _has_alone(path: str, at: int, pair: _Pair) -> bool:
    return pair.nodes[at].has(path) and not pair.nodes[1 - at].has(path)


def _has_one(path: str, pair: _Pair) -> bool:
    return pair.nodes[0].has(path) != pair.nodes[1].has(path)


def _leads_astray(way: tuple[_Node, str], there: tuple[_Node, str]) -> bool:
    """True if the first node's address of this path does not lead to the other's."""
    (one, path), (other, bound) = way, there
    is_given = path in one.places and bound in other.places
    return is_given and not one.places[path].may_lead_to(other.places[bound])


def _miss(asking: int, pair: _Pair) -> bool:
    one, other = pair.nodes[asking], pair.nodes[1 - asking]
    return _leads_astray((one, "endpoints.peer_state"), (other, "endpoints.state"))


def _share_address(path: str, peer_path: str, pair: _Pair) -> bool:
    mine, its = pair.nodes[0].places.get(path), pair.nodes[1].places.get(peer_path)
    if mine is None or its is None or not mine.collides(its):
        return False
    is_same_address = mine.address is not None and not mine.is_loopback and not mine.is_wildcard
    return pair.is_one_machine or (is_same_address and mine == its)


def _share_directory(path: str, pair: _Pair) -> bool:
    mine, its = (node.values[path] for node in pair.nodes)
    if path == "store.directory" and mine == MEMORY:
        return False
    is_same = (
        mine is not None and its is not None and os.path.normpath(str(mine)) == os.path.normpath(str(its))
    )
    return pair.is_one_machine and is_same


PAIR_CONDITIONS = (
    PairCondition(
        lambda pair: len(pair.by_role) == 1,
        "role: both are {ours[role]}; one node is the primary, the other the backup",
    ),
    *(
        PairCondition(
            partial(_differ_by_keys, path),
            f"{path}: {{ours[{path}]}} on {{names[0]}}, {{theirs[{path}]}} on {{names[1]}}; they must be the "
            f"same: {reason}",
        )
        for path, reason in _ALIKE.items()
    ),
    PairCondition(
        lambda pair: any(_differ_by_profiles(path, pair) for path in _ALIKE),
        "profile: {ours[profile]} on {names[0]}, {theirs[profile]} on {names[1]}; give both nodes the same, "
        "or the same timing.*",
    ),
    PairCondition(
        partial(_has_one, "security.key"),
        "security.key: one node has a key and the other has none: they cannot hear each other",
    ),
    PairCondition(
        partial(_has_one, "store.directory"),
        "store.directory: one node has a store and the other has none: give both one, or neither",
    ),
    PairCondition(
        lambda pair: (
            all(node.has("store.directory") for node in pair.nodes)
            and len({node.settings.store.is_in_memory for node in pair.nodes}) == 2
        ),
        "store.directory: {ours[store.directory]} on {names[0]}, {theirs[store.directory]} on {names[1]}; a "
        "pair keeps durable requests in memory or on disks: give both nodes a directory, or both memory",
    ),
    PairCondition(
        lambda pair: (
            len(pair.by_role) == 2
            and _leads_astray((pair.by_role["backup"], _WAY), (pair.by_role["primary"], "store.link"))
        ),
        "store.link of the backup is {backup[store.link]}, but the primary listens at {primary[store.link]} "
        "(its store.link)",
    ),
    PairCondition(
        partial(_miss, 0),
        "endpoints.peer_state of {names[0]} is {ours[endpoints.peer_state]}, but {names[1]} publishes at "
        "{theirs[endpoints.state]} (its endpoints.state)",
    ),
    PairCondition(
        partial(_miss, 1),
        "endpoints.peer_state of {names[1]} is {theirs[endpoints.peer_state]}, but {names[0]} publishes at "
        "{ours[endpoints.state]} (its endpoints.state)",
    ),
    *(
        PairCondition(
            partial(_share_address, path, peer_path),
            f"{path} of {{names[0]}} and {peer_path} of {{names[1]}} are the same address: only one can "
            "bind it",
        )
        for path, peer_path in product(_LISTENS, repeat=2)
    ),
    *(
        PairCondition(
            partial(_share_directory, path),
            f"{path}: both keep {what} in {{ours[{path}]}}; each node needs its own directory",
        )
        for path, what in (("state_dir", "their epoch"), ("store.directory", "their durable requests"))
    ),
)

PAIR_WARNINGS = tuple(
    PairCondition(
        partial(_has_alone, path, at),
        f"{path}: the {{names[{at}]}} has it and the {{names[{1 - at}]}} has not, so these peers lose "
        f"service when the {{names[{at}]}} ends",
    )
    for path, at in product((*FRONT_DOORS, "fronts.http.bind"), (0, 1))
)


def pair_problems(one: Settings, other: Settings) -> list[str]:
    """Why these two, each right by itself, are not a pair: one sentence each, an empty list if they are."""
    pair = _Pair(one, other)
    return [row.text.format(**pair.words) for row in PAIR_CONDITIONS if row.is_broken(pair)]


def pair_warnings(one: Settings, other: Settings) -> list[str]:
    """What these two nodes of a pair may have by mistake: one sentence each."""
    pair = _Pair(one, other)
    return [row.text.format(**pair.words) for row in PAIR_WARNINGS if row.is_broken(pair)]


def check_pair(one: Settings, other: Settings) -> None:
    """Raise ConfigurationError with every reason why these two settings are not the two nodes of one pair."""
    problems = pair_problems(one, other)
    if problems:
        raise ConfigurationError(
            "the two configurations are not a pair:\n" + "\n".join(f"  {text}" for text in problems)
        )
