"""The orders of an operator, over the control socket of a node (``control``) or the network
(``network_orders``): one table.

``bstar`` makes a command of each entry. An order is a word and its arguments; the
answer says what has happened, or why nothing has changed. Both are one JSON object. An order that takes a
while is answered at once, and the caller asks how far it is (``progress``).

To add one, write a function with ``@_order``. Its parameters are the arguments, its docstring is the help,
what it raises is the refusal, and the type of its answer says what ``--json`` prints.
"""

import inspect
import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NoReturn, TypeVar, get_type_hints

import msgspec

from bstar.base.printable import counted, duration, printable
from bstar.base.undecodable import UNDECODABLE
from bstar.settings.schema import RoleName, Settings
from bstar.star.takeover_pause import PAUSE_S_MAX
from bstar.wire.peer import PAUSE_WHY_CHARS_MAX
from bstar_broker.core.snapshot import ListedWorker, RequestState

if TYPE_CHECKING:
    from bstar_broker.core import Node, Output
    from bstar_broker.core.records import Accepted, ServiceRecord, WorkerRecord

LISTED_MAX: Final = 1_000
# Hexadecimal digits: of a durable request's id, and of a request's identity.
_DURABLE_DIGITS = 32
_DIGITS = 48
_PRIMARY, _BACKUP = "--config configs/primary.yaml", "--config configs/backup.yaml"

_log = logging.getLogger("bstar_broker.orders")

Do = TypeVar("Do", bound=Callable[..., "Answer"])


class RefusedError(Exception):
    """Nothing has changed; the text says why."""


# --- what is asked ------------------------------------------------------------------------------------------


def _argument(metavar: str, help_: str) -> msgspec.Meta:
    return msgspec.Meta(description=help_, extra={"metavar": metavar})


def _option(names: str, help_: str, metavar: str | None = None, **bounds: Any) -> msgspec.Meta:
    """``metavar`` TIME is a number of seconds that a person writes as 30m."""
    return msgspec.Meta(description=help_, extra={"names": names.split(), "metavar": metavar}, **bounds)


# Who asks, and the reason. The command writes the first part, so it is never empty.
Why = Annotated[
    str,
    _option(
        "--reason",
        "Why; it goes to the status, the log and the journal.",
        "TEXT",
        min_length=1,
        max_length=PAUSE_WHY_CHARS_MAX,
    ),
]
_Service = Annotated[str, _argument("NAME", "The service, as bstar status lists it.")]
_OfService = Annotated[str, _option("--service -s", "Only those of this service.", "SERVICE")]
_Worker = Annotated[str, _argument("ID", "The worker, as bstar workers ls lists it.")]
_Request = Annotated[str, _argument("ID", f"{_DIGITS} hexadecimal digits: see bstar request ls.")]
_For = _option("--for", "For so long: seconds, or 30m, 2h; one day at most.", "TIME", ge=0, le=PAUSE_S_MAX)


# --- what is answered ---------------------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """``refusal`` says why nothing has changed, "" if it has. ``text`` says what has happened, ``note`` what
    to know beside it. While ``is_under_way`` the caller asks again, for the progress.
    """

    refusal: str = ""
    text: str = ""
    note: str = ""
    is_under_way: bool = False


class Move(Answer, frozen=True, kw_only=True):
    """A switchover. ``waited_s`` counts from the moment from which this node dispatched no request,
    ``handover_s`` from the moment from which it did not serve. Both end when the peer serves,
    in ``epoch``.
    """

    phase: Literal["none", "drains", "released", "moved"] = "none"
    to: str = ""
    epoch: int = 0
    waited_s: float = 0.0
    handover_s: float = 0.0


class Work(Answer, frozen=True, kw_only=True):
    """What is left of a node or a service: ``queued`` requests wait here, and workers hold ``in_flight``."""

    queued: int = 0
    in_flight: int = 0


class Purged(Work, frozen=True, kw_only=True):
    """A purge ended ``purged`` requests."""

    purged: int = 0


class Paused(Answer, frozen=True, kw_only=True):
    """Takeovers are paused for ``for_s`` more; 0 if they are not. ``is_shared``: the peer knows it too."""

    for_s: float = 0.0
    is_shared: bool = False


class Promoted(Answer, frozen=True, kw_only=True):
    """Whether a backup serves, claims the majority, or may be promoted."""

    phase: Literal["serves", "claims", "may"] = "may"


class Workers(Answer, frozen=True, kw_only=True):
    """Workers; ``total`` counts those that were not listed, too."""

    rows: list[ListedWorker] = []
    total: int = 0


class Requests(Answer, frozen=True, kw_only=True):
    """Requests. Workers hold ``running`` requests of these services, and ``waiting`` ones are queued."""

    rows: list[RequestState] = []
    running: int = 0
    waiting: int = 0


# --- the table ----------------------------------------------------------------------------------------------


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One order. Its word is its command with hyphens; ``request`` holds the arguments of ``do``.

    ``needs_active``: only the node that serves obeys it. ``at``: on whose machine a person gives it. ``done``
    and ``refused`` are the exit codes 0 and 1. An order with a ``progress`` should be over within ``wait_s``;
    otherwise ``late`` says what is missing or not known, and the exit code is ``late_code``. ``is_local``: it
    is never given from elsewhere, because the command has to look around on that machine first.
    """

    command: str
    request: type[Any]
    answer: type[Answer]
    do: Callable[..., Answer]
    about: str
    more: str
    at: str
    done: str
    refused: str
    examples: tuple[str, ...]
    needs_active: bool
    progress: "Callable[[Operator], Answer] | None"
    wait_s: Callable[[Settings], float] | None
    late: str
    late_code: Literal[1, 4]
    is_local: bool

    @property
    def word(self) -> str:
        """What it is called on the wire."""
        return self.command.replace(" ", "-")


ORDERS: Final[list[Order]] = []

GROUPS: Final = {
    "service": "One service of a pair: pause, resume, purge (docs/operations.md).",
    "workers": "The workers of a node: ls, drain, resume (docs/operations.md).",
    "request": "Requests that wait or run at a node: ls, show, cancel (docs/operations.md).",
}
"""What commands of two words are about, by the first."""


def _order(  # noqa: PLR0913 - the fields of an entry, named by keyword
    command: str,
    *examples: str,
    done: str,
    refused: str,
    at: str = "the node",
    needs_active: bool = False,
    progress: "Callable[[Operator], Answer] | None" = None,
    wait_s: Callable[[Settings], float] | None = None,
    late: str = "",
    late_code: Literal[1, 4] = 1,
    is_local: bool = False,
) -> Callable[[Do], Do]:
    """Enter a function into the table. See ``Order``."""

    def enter(do: Do) -> Do:
        hints = get_type_hints(do, include_extras=True)
        fields: list[Any] = [
            (name, hints[name]) if each.default is each.empty else (name, hints[name], each.default)
            for name, each in inspect.signature(do).parameters.items()
            if name != "operator"
        ]
        about, _, more = (inspect.getdoc(do) or "").partition("\n\n")
        ORDERS.append(
            Order(
                command=command,
                request=msgspec.defstruct(do.__name__, fields, frozen=True),
                answer=hints["return"],
                do=do,
                about=about,
                more=more,
                at=at,
                done=done,
                refused=refused,
                examples=examples,
                needs_active=needs_active,
                progress=progress,
                wait_s=wait_s,
                late=late,
                late_code=late_code,
                is_local=is_local,
            )
        )
        return do

    return enter


class Operator:
    """Carries orders out on ``node``. ``clock`` is the reactor's, in its thread, ``wall`` the time of day.

    ``promote`` is that of the pair's shell: None if the node serves, or why not.
    """

    def __init__(
        self,
        node: "Node",
        carry_out: "Callable[[Sequence[Output]], None]",
        clock: Callable[[], float],
        promote: Callable[[bool], str | None],
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.node = node
        self.carry_out = carry_out
        self.clock = clock
        self.promote = promote
        self.wall = wall
        self.role = node.machine.settings.role.value
        self.title = f"the {self.role} of the pair {node.machine.settings.pair}"

    def act(self, change: "Callable[[float], list[Output]]") -> None:
        """Change the node, and carry out what follows."""
        self.carry_out(self.node.act(change, self.clock()))

    def answer(self, word: bytes, argument: bytes = b"") -> bytes:
        """The answer to one message of the control socket."""
        return msgspec.json.encode(self.obey(word, argument or b"{}"))

    def obey(self, word: bytes, argument: bytes, by: str = "") -> Answer:
        """Carry an order out, or say how far it is. ``by``: the principal that gave it from elsewhere."""
        try:
            return self._answer(word, argument, by)
        except UNDECODABLE as error:
            return Answer(refusal=f"the order cannot be read: {error}")
        except RefusedError as error:
            return Answer(refusal=str(error))

    def _answer(self, word: bytes, argument: bytes, by: str) -> Answer:
        if (progress := _PROGRESS.get(word)) is not None:
            return progress(self)
        order = _BY_WORD.get(word)
        if order is None:
            raise RefusedError("this node knows no such order: it is of another release")
        asked = msgspec.json.decode(argument, type=order.request)
        if order.needs_active and not self.node.is_active:
            raise RefusedError("this node does not serve: ask the one that does, on its machine")
        arguments = msgspec.structs.asdict(asked)
        if by and "why" in arguments:
            arguments["why"] = printable(f"{by}: {arguments['why']}", PAUSE_WHY_CHARS_MAX)
        return order.do(self, **arguments)


# --- the role -----------------------------------------------------------------------------------------------


def _move(operator: Operator) -> Move:
    settings, move = operator.node.machine.settings, operator.node.parting.switchover
    if move is None:
        return Move()
    phase = move.phase
    if phase == "refused":
        raise RefusedError(move.refusal)
    until = operator.clock() if move.ended_at is None else move.ended_at
    waited_s = round(until - move.asked_at, 6)
    handover_s = 0.0 if move.released_at is None else round(until - move.released_at, 6)
    to, is_under_way = settings.role.peer.value, move.ended_at is None
    text = (
        f"the {to} of the pair {settings.pair} serves, epoch {move.epoch}: the handover took "
        f"{handover_s:.3f} s, and no request was dispatched for {waited_s:.3f} s"
    )
    return Move(
        phase=phase, to=to, epoch=move.epoch, waited_s=waited_s, handover_s=handover_s,
        text="" if is_under_way else text, is_under_way=is_under_way,
    )  # fmt: skip


def _elsewhere(operator: Operator) -> str:
    """Whom to ask, if this node does not serve; empty if it does."""
    node, role = operator.node, operator.node.machine.settings.role
    state, peer = node.machine.state.name, role.peer.value
    return "" if node.is_active else f"the {role.value} is {state}: ask the {peer}, on its machine"


@_order(
    "switchover",
    _PRIMARY,
    f"{_BACKUP} --to primary --if-healthy",
    at="the node that serves",
    done="the other node serves",
    refused="the role stays: the peer is silent, drained or does not stand by, its durable store is not in "
    "sync, takeovers are paused, the node is stopping, or workers did not finish; with --if-healthy "
    "also: the arbiter does not answer, the node cannot store its epoch, is short of descriptors, or cannot "
    "read a file of its security",
    progress=_move,
    wait_s=lambda settings: settings.timing.drain_timeout_s + 4 * settings.timing.failover_timeout_max_s,
    late="whether the role has moved: the peer has not said that it serves. Ask bstar status",
    late_code=4,
)
def _switch_over(
    operator: Operator,
    to: Annotated[
        RoleName | None, _option("--to", "Which node is to serve. Otherwise the other one.")
    ] = None,
    is_if_healthy: Annotated[
        bool, _option("--if-healthy", "Refuse if the node knows of any trouble of the pair.")
    ] = False,
) -> Move:
    """Move the role to the other node without losing a request.

    The node lets workers finish what they hold, while new requests wait. Then it gives the role to its peer,
    and what waits goes there. If workers do not finish within timing.drain_timeout_s, the switchover is
    called off and the node serves on.
    """
    node, role = operator.node, operator.node.machine.settings.role
    if to == role.value:
        raise RefusedError(_elsewhere(operator) or f"the {role.value} serves already")
    _log.info("bstar switchover: the operator asks to give the role to the %s", role.peer.value)
    before = node.parting.switchover
    operator.carry_out(node.switch_over(operator.clock(), is_if_healthy=is_if_healthy))
    if before is not None and node.parting.switchover is before:
        raise RefusedError("another switchover is under way")
    return _move(operator)


def _drained(operator: Operator) -> Work:
    node, ledger = operator.node, operator.node.broker.ledger
    queued = ledger.waiting.count
    in_flight = sum(worker.held for worker in ledger.workers.values())
    if node.parting.drain_why:
        is_done = bool(node.machine.drained_why and not queued and not in_flight)
        text = f"{operator.title} is drained: no request is left on it, and it stands by no more"
        note = f"{in_flight} requests at workers, {queued} wait"
        said = {"text": text} if is_done else {"note": note}
        return Work(queued=queued, in_flight=in_flight, is_under_way=not is_done, **said)
    move = node.parting.switchover
    if move is not None and move.refusal and node.is_active:
        raise RefusedError(move.refusal)
    raise RefusedError("this node is stopping" if node.machine.is_leaving else "the drain was ended")


@_order(
    "drain",
    f'{_PRIMARY} --reason "new disk"',
    f"{_PRIMARY} --undo",
    done="the node is drained and nothing is left on it, or is back",
    refused="the node is as it was: as bstar switchover if it serves; with --undo: it is not drained",
    progress=_drained,
)
def _drain(
    operator: Operator,
    why: Why = "",
    is_undone: Annotated[bool, _option("--undo", "Put the node back into the pair.")] = False,
) -> Work:
    """Take a node out of the pair: it gives the role up, finishes what it has, and stands by no more.

    A node that serves moves the role first, as bstar switchover does. Then it falls silent, and its peer goes
    on alone. The process goes on; --undo or its restart ends the drain. Progress goes to standard error.
    """
    node = operator.node
    if not is_undone:
        _log.info("bstar drain: %s", why)
        operator.carry_out(node.drain(why, operator.clock()))
        return _drained(operator)
    if not node.machine.drained_why:
        raise RefusedError("this node is not drained")
    operator.carry_out(node.rejoin(why, operator.clock()))
    return Work(text=f"{operator.title} is back in the pair")


def _paused(operator: Operator) -> Paused:
    machine, now = operator.node.machine, operator.clock()
    is_shared = machine.pause.peer_number == machine.pause.number and not machine.peer.is_silent(now)
    for_s = machine.pause.rest_s(now)
    end = datetime.fromtimestamp(operator.wall() + for_s).astimezone()
    how = f"paused until {end:%Y-%m-%d %H:%M:%S %Z}" if for_s else "resumed"
    text = f"takeovers of the pair {machine.settings.pair} are {how}"
    return Paused(for_s=for_s, is_shared=is_shared, text=text, is_under_way=not is_shared)


@_order(
    "pause",
    f'{_PRIMARY} --for 30m --reason "new switch in rack 4"',
    at="either node",
    done="both nodes know it",
    refused="the peer does not know it",
    progress=_paused,
    wait_s=lambda settings: 2 * settings.timing.failover_timeout_max_s,
    late="the peer does not know of the pause: it may take over",
)
def _pause(operator: Operator, for_s: Annotated[float, _For], why: Why) -> Paused:
    """Pause takeovers: while it lasts, no node serves because its peer is silent.

    The peer knows it at once. The node that serves goes on. A node that stops or starts again says so
    itself, and the other one serves as always; bstar promote still works. The role does not follow clients
    that are cut off. A restart of a node does not end the pause, and it ends by itself.

    Until then the other node does not take over from one that dies or is cut off. bstar status shows the
    pause, with your name and the reason.
    """
    from bstar.star import PauseTakeovers  # noqa: PLC0415 - the command needs none of it

    operator.carry_out(operator.node.step(PauseTakeovers(for_s, why), operator.clock()))
    return _paused(operator)


@_order(
    "resume",
    _PRIMARY,
    at="either node",
    done="both nodes know it",
    refused="takeovers are not paused, or the peer does not know it",
    progress=_paused,
    wait_s=lambda settings: 2 * settings.timing.failover_timeout_max_s,
    late="the peer does not know of the end of the pause: resume there, too, or it goes on",
)
def _resume(operator: Operator, why: Why = "") -> Paused:
    """End a pause of takeovers before its time (bstar pause).

    The peer knows it at once.
    """
    from bstar.star import ResumeTakeovers  # noqa: PLC0415 - see above

    if not operator.node.machine.pause.is_on(operator.clock()):
        raise RefusedError("takeovers are not paused")
    operator.carry_out(operator.node.step(ResumeTakeovers(why), operator.clock()))
    return _paused(operator)


def _claim(operator: Operator) -> Promoted:
    """The machine has to be asked again while it claims the majority."""
    return _promoted(operator, operator.promote(False))


def _promoted(operator: Operator, why_not: str | None) -> Promoted:
    if why_not:
        raise RefusedError(why_not)
    if why_not is None:
        return Promoted(phase="serves", text=f"{operator.title} serves")
    return Promoted(phase="claims", is_under_way=True)


@_order(
    "promote",
    _BACKUP,
    f"{_BACKUP} --force",
    at="the backup",
    is_local=True,
    done="the backup serves",
    refused="the node hears its primary, the primary may live, or the node is no lone backup",
    progress=_claim,
    wait_s=lambda settings: 4 * settings.timing.failover_timeout_max_s + 1.0,
    late="the node has no majority: neither its peer nor the arbiter confirms it. Start the arbiter, or mend "
    "the link to it",
)
def _promote(
    operator: Operator,
    is_forced: Annotated[
        bool, _option("--force", "You have made sure that the primary does not run.")
    ] = False,
    is_trial: bool = False,
) -> Promoted:
    """Let a backup serve that has been alone since it started.

    A backup that starts alone never serves by itself, because the primary may serve where it cannot be heard.
    The node must not hear its primary; then the primary's state endpoint must refuse connections, which
    proves that no process listens there. Where it cannot be reached, --force says that you have made sure.
    With an arbiter the majority is needed as well, whatever you say. A primary that comes back stands by.
    """
    if is_trial:
        return _promoted(operator, operator.promote(True))
    is_serving = operator.node.is_active
    answer = _claim(operator)
    if is_serving:
        return answer
    _log.info(
        "bstar promote --force: the operator alone says that the primary does not run"
        if is_forced
        else "bstar promote: the primary's state endpoint refuses connections, so no process listens there"
    )
    return answer


@_order(
    "store force",
    f"{_BACKUP} --give-up-the-other",
    at="the node that serves",
    needs_active=True,
    done="the store leads",
    refused="--give-up-the-other is missing, or the store cannot lead",
)
def _force_store(
    operator: Operator,
    is_other_given_up: Annotated[
        bool, _option("--give-up-the-other", "You know that the other copy is lost, or may be.")
    ] = False,
) -> Answer:
    """Let the store go on from the copy of the node that serves, whatever the other copy has.

    A node whose copy may lack something that was acknowledged does not lead the store: it waits for the other
    node. If the other disk is lost, give this order. What only the other copy has is given up: when that node
    comes back, it takes over this copy. A new disk beside a node with a copy is refused: force that copy. If
    neither is there, an empty store begins, and one that comes back is another store than this.
    """
    store = operator.node.store
    if store is None:
        raise RefusedError("this node has no durable store")
    if not is_other_given_up:
        give_up = "if that is what you want, say --give-up-the-other"
        raise RefusedError(f"what only the other node's disk has is given up: {give_up}")
    if before := store.trouble:
        operator.carry_out(operator.node.force_store(operator.clock()))
        if store.trouble:
            raise RefusedError(store.trouble)
        _log.warning("bstar store force: the store goes on from this copy; before: %s", before)
    return Answer(text=f"{operator.title} leads the store")


# --- services -----------------------------------------------------------------------------------------------


def _service(operator: Operator, label: str) -> "ServiceRecord":
    from bstar_broker.core.services import unknown_service  # noqa: PLC0415 - see above

    service = operator.node.broker.ledger.services.labelled(label)
    if service is None:
        raise RefusedError(unknown_service(label))
    return service


def _left(operator: Operator, service: "ServiceRecord") -> tuple[int, int]:
    """How many requests wait for it, and how many its workers hold."""
    workers = operator.node.broker.ledger.workers.values()
    return service.queued, sum(worker.held for worker in workers if worker.service is service)


@_order(
    "service pause",
    f'price {_PRIMARY} --for 30m --reason "its database is ill"',
    done="paused",
    refused="there is no such service",
)
def _pause_service(
    operator: Operator, service: _Service, why: Why, for_s: Annotated[float, _For] = 0.0
) -> Work:
    """Hold a service's requests back: they wait in its queue, and workers get none.

    Workers finish what they hold. The pause is this node's own: pause the service on the other node as well,
    or a failover resumes it. It ends with its time, with bstar service resume, or with the node's process.
    """
    record, orders = _service(operator, service), operator.node.broker.orders
    operator.act(lambda now: orders.pause(record, for_s, why, now))
    queued, in_flight = _left(operator, record)
    until = f"for {duration(for_s)}" if for_s else "until bstar service resume"
    is_paused = f"{service} is paused on the {operator.role} {until}"
    peer = operator.node.machine.settings.role.peer.value
    note = f"a pause holds at one node: give this order at the {peer}, too, or a failover resumes {service}"
    text = f"{is_paused}: {queued} wait, {in_flight} go on"
    return Work(queued=queued, in_flight=in_flight, text=text, note=note)


@_order(
    "service resume",
    f"price {_PRIMARY}",
    done="resumed",
    refused="there is no such service, or it is not paused on this node",
)
def _resume_service(operator: Operator, service: _Service, why: Why = "") -> Work:
    """End a pause of a service on this node; its workers get what waits."""
    record, orders = _service(operator, service), operator.node.broker.orders
    if not record.pause_why:
        raise RefusedError(f"{record.title} is not paused on this node")
    operator.act(lambda now: orders.resume(record, why, now))
    queued, in_flight = _left(operator, record)
    text = f"{service} is resumed on the {operator.role}: {queued} wait, {in_flight} at workers"
    return Work(queued=queued, in_flight=in_flight, text=text)


@_order(
    "service purge",
    f'price {_PRIMARY} --reason "orders of a broken client"',
    at="the node that serves",
    needs_active=True,
    done="purged, with how many",
    refused="there is no such service, or this node does not serve",
)
def _purge_service(operator: Operator, service: _Service, why: Why) -> Purged:
    """End all requests that wait for a service; each caller gets an error and does not send it again.

    The error says that the request was not executed, or, if a worker was lost with it, that it may have been.
    Callers of plain Majordomo get none: their timeout applies, and some send again. What workers hold goes
    on. Durable requests stay.
    """
    record, orders = _service(operator, service), operator.node.broker.orders
    before = record.queued
    operator.act(lambda now: orders.purge(record, why, now)[1])
    queued, in_flight = _left(operator, record)
    purged = before - queued
    stay = f"; {counted(queued, 'durable request')} stay{'s' * (queued == 1)}" if queued else ""
    text = f"{service}: {counted(purged, 'request')} purged{stay}"
    return Purged(queued=queued, in_flight=in_flight, purged=purged, text=text)


# --- workers ------------------------------------------------------------------------------------------------


def _worker(operator: Operator, label: str) -> "WorkerRecord":
    worker = operator.node.broker.work_orders.find_worker(label)
    if worker is None:
        name = printable(label.encode())
        raise RefusedError(f'this node has no worker "{name}": bstar workers ls lists them')
    return worker


def _listed(operator: Operator, workers: "Sequence[WorkerRecord]") -> list[ListedWorker]:
    from bstar_broker.core.management import listed_worker  # noqa: PLC0415 - see above

    return [listed_worker(worker, operator.clock()) for worker in workers]


@_order("workers ls", f"{_PRIMARY} --service price", done="listed", refused="there is no such service")
def _list_workers(operator: Operator, service: _OfService = "") -> Workers:
    """List the workers of a node: which service each offers, what it holds, how it speaks, where it runs.

    HOST, PID and VERSION are what a worker of the client library reports; ADDRESS is where the node sees it.
    Both nodes know each worker, each by an id of its own.
    """
    record = _service(operator, service) if service else None
    known = operator.node.broker.ledger.workers.values()
    workers = [each for each in known if record in (None, each.service)]
    note = ""
    if len(workers) > LISTED_MAX:
        note = f"the first {LISTED_MAX:,} of {len(workers):,}; --service shows fewer"
    elif not workers:
        of = f' of service "{printable(service)}"' if service else ""
        note = f"the {operator.role} has no worker{of}"
    return Workers(rows=_listed(operator, workers[:LISTED_MAX]), total=len(workers), note=note)


@_order(
    "workers drain",
    f'1f4bc8d09e5a7723 {_PRIMARY} --reason "its host gets a new disk"',
    done="drained",
    refused="there is no such worker",
)
def _drain_worker(operator: Operator, worker: _Worker, why: Why) -> Workers:
    """Give a worker no more requests, in any dialect; it finishes what it holds.

    Once the worker holds nothing its process can be stopped and no request runs twice. The drain is this
    node's own and lasts until bstar workers resume, or until the worker's process or the node's ends. With
    the node that serves, a failover ends it.
    """
    record, orders = _worker(operator, worker), operator.node.broker.work_orders
    operator.act(lambda now: orders.drain(record, why, now))
    rest = "it holds nothing" if not record.held else f"it holds {record.held}: ask bstar workers ls"
    text = f"worker {worker} of {record.service.label} is drained, {rest}"
    return Workers(rows=_listed(operator, [record]), total=1, text=text)


@_order(
    "workers resume",
    f"1f4bc8d09e5a7723 {_PRIMARY}",
    done="it gets requests again",
    refused="there is no such worker, or it is not drained",
)
def _resume_worker(operator: Operator, worker: _Worker, why: Why = "") -> Workers:
    """Let a drained worker work again."""
    record, orders = _worker(operator, worker), operator.node.broker.work_orders
    if not record.drain_why:
        raise RefusedError(f"worker {worker} of {record.service.title} is not drained")
    operator.act(lambda now: orders.resume(record, why, now))
    text = f"worker {worker} of {record.service.label} gets requests again, {record.credit} at most"
    return Workers(rows=_listed(operator, [record]), total=1, text=text)


# --- requests -----------------------------------------------------------------------------------------------


def _request(operator: Operator, text: str, verb: str) -> "Accepted":
    def refuse_durable() -> NoReturn:
        raise RefusedError(f"it is durable: bstar durable {verb} {text[:_DURABLE_DIGITS]}")

    if len(text) == _DURABLE_DIGITS:
        refuse_durable()
    try:
        identity = bytes.fromhex(text)
    except ValueError:
        identity = b""
    if len(text) != _DIGITS or not identity:
        raise RefusedError(f"a request's id has {_DIGITS} hexadecimal digits: bstar request ls")
    broker = operator.node.broker
    request = broker.work_orders.find_request(identity)
    if request is None:
        raise RefusedError(f"this node has no request {text}: it has ended, or never came here")
    if request.codec is broker.ledger.mailbox:
        refuse_durable()
    if request.is_abandoned:
        raise RefusedError(f"request {text} was given up already; a worker still runs it")
    return request


@_order(
    "request ls",
    f"{_PRIMARY} --service price",
    at="the node that serves",
    done="listed",
    refused="there is no such service",
)
def _list_requests(
    operator: Operator,
    service: _OfService = "",
    limit: Annotated[
        int, _option("--limit", "So many at workers, and so many that wait.", "N", ge=1, le=LISTED_MAX)
    ] = 20,
) -> Requests:
    """List the oldest requests at workers, and of each client the oldest that waits.

    Requests of one batch are one row while nothing tells them apart; its id is that of the first of them.
    """
    record, broker = _service(operator, service) if service else None, operator.node.broker
    rows = broker.work_orders.oldest(record, limit, operator.clock())
    running = sum(each.held for each in broker.ledger.workers.values() if record in (None, each.service))
    waiting = broker.ledger.waiting.count if record is None else record.queued
    where = _elsewhere(operator)
    note = f"{running:,} at workers, {waiting:,} waiting{f' here; {where}' if where else ''}"
    return Requests(rows=rows, running=running, waiting=waiting, note=note)


@_order(
    "request show",
    f"5b9f20...0001 {_PRIMARY}",
    at="the node that serves",
    needs_active=True,
    done="shown",
    refused="it has ended, it is durable, or this node does not serve",
)
def _show_request(operator: Operator, request: _Request) -> Requests:
    """Show one request: who asked for it, how long ago, who has it."""
    record = _request(operator, request, "show")
    return Requests(rows=[operator.node.broker.work_orders.describe(record, operator.clock())])


@_order(
    "request cancel",
    f'5b9f20...0001 {_PRIMARY} --reason "a year of prices"',
    at="the node that serves",
    needs_active=True,
    done="cancelled",
    refused="it has ended, it is durable, or this node does not serve",
)
def _cancel_request(operator: Operator, request: _Request, why: Why) -> Requests:
    """End one request; its caller gets an error with the reason and does not send it again.

    A request that waits is not executed. The handler of a worker that has it learns of it and may stop; its
    answer is dropped, and the caller's error says that it may have been executed. Callers of plain Majordomo
    get no error: their timeout applies, and some send again.
    """
    record, orders = _request(operator, request, "cancel"), operator.node.broker.work_orders
    row = orders.describe(record, operator.clock())
    operator.act(lambda now: orders.cancel(record, why, now))
    how = f"worker {row.worker} has it and learns of it, its answer is dropped" if row.worker else "it waited"
    row = msgspec.structs.replace(row, is_given_up=True)
    return Requests(rows=[row], text=f"request {request} of {row.service} is cancelled: {how}")


_BY_WORD: Final = {order.word.encode(): order for order in ORDERS}
_PROGRESS: Final = {
    f"{order.word}-progress".encode(): order.progress for order in ORDERS if order.progress is not None
}
