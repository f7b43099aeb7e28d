"""What must hold between keys: inside one configuration, and between the two of a pair.

A key's own type and bounds stand in the schema. Here are the sentences that name two keys or more: the tuning
inequalities as a table with their reasons, what may be bound, and what two nodes must have in common.
"""

import os.path
from collections.abc import Callable, Iterator, Mapping

import msgspec

from bstar.base.endpoints import Endpoint, parse_endpoint, parse_http_bind
from bstar.errors import ConfigurationError
from bstar.settings.fields import FIELDS, flatten
from bstar.settings.schema import Http, Settings
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


def _longer_worker_expiry_s(settings: Settings) -> float:
    return max(_worker_expiry_s(settings), _mdp_expiry_s(settings))


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
        right="both worker expiries (…_heartbeat_interval_s × …_liveness)",
        paths=("timing.request_ttl_s", *_WORKER, *_MDP),
        values=lambda s: (s.timing.request_ttl_s, _longer_worker_expiry_s(s)),
        reason="a request whose worker died is noticed after that time and must still be alive to go to "
        "another one",
    ),
    Relation(
        left="service_ttl_s",
        is_strict=True,
        right="both worker expiries (…_heartbeat_interval_s × …_liveness)",
        paths=("timing.service_ttl_s", *_WORKER, *_MDP),
        values=lambda s: (s.timing.service_ttl_s, _longer_worker_expiry_s(s)),
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
)


# How the names of the broker's own services begin.
_OWN_PREFIXES = ("mmi.", "store.", "titanic.")

# Where the fronts listen.
FRONT_DOORS = [
    path
    for path, field in FIELDS.items()
    if path.startswith("fronts.") and field.expected == "a text or null"
]


def node_problems(settings: Settings) -> Iterator[Problem]:
    """Everything that contradicts itself in one node's settings."""
    for relation in RELATIONS:
        if not relation.holds(settings):
            left, right = relation.values(settings)
            yield Problem(
                relation.paths, f"{relation.words}, but {left:g} is against {right:g}: {relation.reason}"
            )

    places: dict[str, Endpoint] = {}
    connected = ["endpoints.peer_state", "endpoints.arbiter"]
    bound = ["endpoints.clients", "endpoints.state", *FRONT_DOORS]
    (bound if settings.role == "primary" else connected).append("store.link")
    for path in (*bound, *connected, "http.bind"):
        text = flatten(settings)[path]
        if text is None:
            continue
        assert isinstance(text, str)
        try:
            places[path] = (
                parse_http_bind(text)
                if path == "http.bind"
                else parse_endpoint(text, bind=path not in connected)
            )
        except ValueError as error:
            yield Problem((path,), str(error))

    security = settings.security
    if (security.key is None) != (security.principals is None):
        given, missing = ("key", "principals") if security.principals is None else ("principals", "key")
        yield Problem(
            (f"security.{missing}", f"security.{given}"),
            f"is missing beside security.{given}: a node needs its key and the list of who may connect",
        )
    if security.key is not None and settings.insecure:
        yield Problem(("insecure", "security.key"), "is true beside a key: remove one of them")
    if (settings.store.directory is None) != (settings.store.link is None):
        given, missing = ("directory", "link") if settings.store.link is None else ("link", "directory")
        yield Problem(
            (f"store.{missing}", f"store.{given}"),
            f"is missing beside store.{given}: durable requests need a disk and the way to the peer's",
        )
    yield from _front_problems(settings)
    for path in bound:
        is_open = path in places and not places[path].is_loopback
        if is_open and security.key is None and not settings.insecure:
            yield Problem(
                (path, "security.key", "insecure"),
                "others can reach this address, and without security.key there is no encryption and no "
                "authentication: make keys (bstar keys new), bind 127.0.0.1, or say insecure: true if the "
                "network itself keeps strangers out",
            )
    yield from _http_problems(settings.http, places.get("http.bind"))

    bound = [path for path in (*bound, "http.bind") if path in places]
    for at, path in enumerate(bound):
        for other in bound[:at]:
            if places[path].collides(places[other]):
                yield Problem((path, other), f"is the same address as {other}: each needs its own")
    if {"endpoints.arbiter", "endpoints.peer_state"} <= places.keys():
        arbiter, peer = places["endpoints.arbiter"], places["endpoints.peer_state"]
        if arbiter.is_loopback and not peer.is_loopback:
            yield Problem(
                ("endpoints.arbiter", "endpoints.peer_state"),
                "is an address of this machine only, and the peer, on another one, would ask another arbiter",
            )
        if any(path in places and arbiter.collides(places[path]) for path in bound):
            yield Problem(("endpoints.arbiter",), "is an address that this node itself listens on")
    if {"endpoints.state", "endpoints.peer_state"} <= places.keys():
        state, peer = places["endpoints.state"], places["endpoints.peer_state"]
        # Every address and the same port is how two machines are configured alike; only a certain match is
        # wrong.
        if peer.collides(state) and not state.is_wildcard:
            yield Problem(
                ("endpoints.peer_state", "endpoints.state"),
                "is this node's own endpoints.state: give the other node's",
            )


def _front_problems(settings: Settings) -> Iterator[Problem]:
    values = flatten(settings)
    yield from _service_problems(settings)
    yield from _missing_doors(values)
    for path in FRONT_DOORS:
        if not path.startswith("fronts.pzq.") or values[path] is None:
            continue
        if settings.store.directory is None:
            yield Problem(
                (path, "store.directory"),
                "needs the durable store, which keeps PZQ's messages: set store.directory and store.link",
            )


def _service_problems(settings: Settings) -> Iterator[Problem]:
    """Names that no worker of a front can register for. Without a store, titanic.* are ordinary names."""
    fronts = settings.fronts
    for path, service, prefixes in (
        ("fronts.ppp.service", fronts.ppp.service, _OWN_PREFIXES[:2]),
        ("fronts.pzq.service", fronts.pzq.service, _OWN_PREFIXES),
        ("fronts.emq.default_queue", fronts.emq.default_queue, _OWN_PREFIXES),
    ):
        if service.startswith(prefixes) or len(service.encode()) > SERVICE_BYTES_MAX:
            text = (
                f"is no name of a worker's service: it has at most {SERVICE_BYTES_MAX} octets and begins with"
            )
            yield Problem((path,), f"{text} none of {', '.join(prefixes)}")


def _missing_doors(values: Mapping[str, object]) -> Iterator[Problem]:
    doors = [path for path in FRONT_DOORS if path.startswith("fronts.emq.")]
    if any(values[path] is not None for path in doors):
        for path in ("fronts.emq.clients", "fronts.emq.workers"):
            if values[path] is None:
                yield Problem(
                    (path,), "is missing: EventMQ needs a door for clients and one for job managers"
                )


def _http_problems(http: Http, place: Endpoint | None) -> Iterator[Problem]:
    if place is not None and not place.is_loopback and not http.allow_remote:
        yield Problem(
            ("http.bind", "http.allow_remote"),
            "others can reach this address and read status and metrics: bind 127.0.0.1 and put a proxy with "
            "TLS before it, or say http.allow_remote: true if the network itself keeps strangers out",
        )


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


def pair_problems(one: Settings, other: Settings) -> list[str]:
    """Why these two, each right by itself, are not a pair: one sentence each, an empty list if they are."""
    problems: list[str] = []
    if one.role == other.role:
        problems.append(f"role: both are {one.role}; one node is the primary, the other the backup")
    names = (one.role, other.role) if one.role != other.role else ("the first", "the second")

    ours, theirs = flatten(one), flatten(other)
    problems += [
        f"{path}: {ours[path]} on {names[0]}, {theirs[path]} on {names[1]}; they must be the same: {reason}"
        for path, reason in _ALIKE.items()
        if ours[path] != theirs[path]
    ]

    if (one.security.key is None) != (other.security.key is None):
        problems.append(
            "security.key: one node has a key and the other has none: they cannot hear each other"
        )
    if (one.store.directory is None) != (other.store.directory is None):
        problems.append(
            "store.directory: one node has a store and the other has none: give both one, or neither"
        )
    links = {one.role: one.store.link, other.role: other.store.link}
    if one.role != other.role and links["primary"] is not None and links["backup"] is not None:
        meeting = parse_endpoint(links["primary"], bind=True)
        if not parse_endpoint(links["backup"], bind=False).may_lead_to(meeting):
            problems.append(
                f"store.link of the backup is {links['backup']}, but the primary listens at "
                f"{links['primary']} (its store.link)"
            )
    nodes = [(names[0], one, names[1], other), (names[1], other, names[0], one)]
    for name, node, peer_name, peer in nodes:
        peer_state = parse_endpoint(node.endpoints.peer_state, bind=False)
        if not peer_state.may_lead_to(parse_endpoint(peer.endpoints.state, bind=True)):
            problems.append(
                f"endpoints.peer_state of {name} is {node.endpoints.peer_state}, but {peer_name} publishes "
                f"at {peer.endpoints.state} (its endpoints.state)"
            )

    # Peers that meet on a loopback address live on one machine; otherwise the same port on both is as it
    # should be.
    is_one_machine = any(
        parse_endpoint(node.endpoints.peer_state, bind=False).is_loopback for node in (one, other)
    )
    for path, mine in _bound(one).items():
        for peer_path, its in _bound(other).items():
            is_same_address = mine.address is not None and not mine.is_loopback and not mine.is_wildcard
            if mine.collides(its) and (is_one_machine or (is_same_address and mine == its)):
                problems.append(
                    f"{path} of {names[0]} and {peer_path} of {names[1]} are the same address: only one can "
                    "bind it"
                )
    for path, what in (("state_dir", "their epoch"), ("store.directory", "their durable requests")):
        kept = [flatten(node)[path] for node in (one, other)]
        directories = [os.path.normpath(str(each)) for each in kept if each is not None]
        if is_one_machine and len(directories) == 2 and directories[0] == directories[1]:
            problems.append(
                f"{path}: both keep {what} in {directories[0]}; each node needs its own directory"
            )
    return problems


def node_warnings(settings: Settings) -> list[str]:
    """What this node's settings allow that its operator may not mean: one sentence each."""
    store = settings.store
    if store.directory is None or store.when_alone != "accept" or settings.endpoints.arbiter is not None:
        return []
    text = (
        "store.when_alone: accept without endpoints.arbiter loses acknowledged requests and fetched answers "
        "of one node if the nodes are cut off from each other and clients reach both; name an arbiter on "
        "both nodes, or say refuse"
    )
    return [text]


def pair_warnings(one: Settings, other: Settings) -> list[str]:
    """What these two nodes of a pair may have by mistake: one sentence each."""
    ours, theirs = flatten(one), flatten(other)
    return [
        f"{path}: the {with_it.role} has it and the {without.role} has not, so these peers lose service when "
        f"the {with_it.role} ends"
        for path in FRONT_DOORS
        if (ours[path] is None) != (theirs[path] is None)
        for with_it, without in [(other, one) if ours[path] is None else (one, other)]
    ]


def _bound(settings: Settings) -> dict[str, Endpoint]:
    found = {
        "endpoints.clients": parse_endpoint(settings.endpoints.clients, bind=True),
        "endpoints.state": parse_endpoint(settings.endpoints.state, bind=True),
    }
    if settings.http.bind is not None:
        found["http.bind"] = parse_http_bind(settings.http.bind)
    values = flatten(settings)
    for path in FRONT_DOORS:
        if isinstance(endpoint := values[path], str):
            found[path] = parse_endpoint(endpoint, bind=True)
    if settings.store.link is not None and settings.role == "primary":
        found["store.link"] = parse_endpoint(settings.store.link, bind=True)
    return found


def check_pair(one: Settings, other: Settings) -> None:
    """Raise ConfigurationError with every reason why these two settings are not the two nodes of one pair."""
    problems = pair_problems(one, other)
    if problems:
        raise ConfigurationError(
            "the two configurations are not a pair:\n" + "\n".join(f"  {text}" for text in problems)
        )
