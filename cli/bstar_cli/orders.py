"""The commands that give a node an order: made of the table ``bstar_broker.operate.orders``.

An order goes to a node on this machine through its control socket, or to one elsewhere as a request of an
operator's key. Its arguments are those of the command, its answer is what the command prints. ``_TABLES`` has
the listings that people read as a table of their own, ``_CHECKS`` what this machine has to find out before
the order is given.
"""

import getpass
import inspect
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, NamedTuple, NoReturn, TypeVar, get_args

import msgspec
import typer
import zmq
from rich.table import Table

from bstar.base.printable import lines
from bstar.base.undecodable import UNDECODABLE
from bstar.settings import Settings
from bstar.wire import mmi
from bstar_broker.core.snapshot import ListedWorker, RequestState
from bstar_broker.operate import control
from bstar_broker.operate.network_orders import Sent, Stamp
from bstar_broker.operate.orders import GROUPS, ORDERS, Answer, Order
from bstar_cli import exits
from bstar_cli.options import Elsewhere, NodeConfiguration, grouped, refuse, seconds_of
from bstar_cli.probe import probe
from bstar_cli.terminal import cell, json_line, print_tables, table
from bstar_client.calls.status import ask_nodes

T = TypeVar("T")

_ANSWER_S: Final = 5.0
_ASK_AGAIN_S: Final = 0.05
# Each time is a connection of its own.
_ASK_AGAIN_ELSEWHERE_S: Final = 0.5
_PROGRESS_S: Final = 1.0
# The peer reads 300 characters of name and reason.
_REASON_CHARS_MAX: Final = 200

_CONFIG: Final = re.compile(r"--config \S+")
_ELSEWHERE: Final = "-e tcp://10.0.0.1:5001 --key-file ops.key --server-keys primary.pub"

Ask = Callable[[str, Mapping[str, object]], bytes]


class Reached(NamedTuple):
    """A node that takes the order. Its end is waited for so long (None: as long as it takes)."""

    ask: Ask
    wait_s: float | None
    again_s: float = _ASK_AGAIN_S


class RefusedError(Exception):
    """The order is refused, by the node or here; the text says why."""


class NoAnswerError(Exception):
    """No node answered. ``was_sent``: a node may have got the order and carried it out."""

    def __init__(self, text: str, *, was_sent: bool) -> None:
        super().__init__(text)
        self.was_sent = was_sent


# --- to the node and back -----------------------------------------------------------------------------------


@contextmanager
def node_at(settings: Settings) -> Iterator[Ask]:
    """A function that gives the node with these settings a word with arguments. It raises NoAnswerError."""
    path = control.find_control(settings)
    no_answer = (
        f"no node answers at {path}: is the {settings.role} running on this machine, with this "
        "configuration and as this user? (Of a systemd unit: as root.)"
    )
    silent = (
        f"the {settings.role} has not answered for {_ANSWER_S:g} s at {path}: it is frozen, hangs or is busy"
    )
    with zmq.Context() as context, context.socket(zmq.DEALER) as node:
        node.linger = 0
        node.connect(f"ipc://{path}")

        def ask(word: str, arguments: Mapping[str, object]) -> bytes:
            if not control.is_listening(path):
                raise NoAnswerError(no_answer, was_sent=False)
            node.send_multipart([word.encode(), msgspec.json.encode(arguments)])
            if not node.poll(int(_ANSWER_S * 1000)):
                raise NoAnswerError(silent if control.is_listening(path) else no_answer, was_sent=True)
            return node.recv()

        yield ask


def node_elsewhere(order: Order, elsewhere: Elsewhere) -> Reached:
    """The same for a node elsewhere, with a stamp of that node for this order. Raises NoAnswerError."""
    endpoint, security = elsewhere.place()

    def say(sent: Sent, *, is_order: bool = True) -> bytes:
        body = msgspec.json.encode(sent)
        [answer] = ask_nodes([endpoint], mmi.ORDER, _ANSWER_S, security, body=body)
        if answer.body is None:
            raise NoAnswerError(f"{endpoint}: {answer.error}", was_sent=is_order and answer.may_have_run)
        if len(answer.body) != 2 or answer.body[0] != mmi.OK:
            raise RefusedError(f"{endpoint}: the node is of a release that takes no orders from elsewhere")
        return answer.body[1]

    stamp = _read(say(Sent(order.word), is_order=False), Stamp)
    epoch = stamp.epoch if elsewhere.epoch is None else elsewhere.epoch

    def ask(word: str, arguments: Mapping[str, object]) -> bytes:
        return say(Sent(word, stamp.node, epoch, msgspec.Raw(msgspec.json.encode(arguments))))

    return Reached(ask, stamp.wait_s, _ASK_AGAIN_ELSEWHERE_S)


@contextmanager
def _reach(order: Order, node: Settings | Elsewhere, arguments: Mapping[str, object]) -> Iterator[Reached]:
    if isinstance(node, Elsewhere):
        yield node_elsewhere(order, node)
        return
    with node_at(node) as ask:
        if (check := _CHECKS.get(order.command)) is not None:
            check(node, ask, arguments)
        yield Reached(ask, None if order.wait_s is None else order.wait_s(node))


def who(reason: str) -> str:
    """Who asks, and the reason: for the log, the journal and others who look at the status."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # the user has no name
        user = "somebody"
    who = f"{user}@{socket.gethostname()}"[:80]
    return f"{who}: {reason}" if reason else who


def give(order: Order, node: Settings | Elsewhere, arguments: Mapping[str, object], *, as_json: bool) -> None:
    """Give the order, wait for its end, print the answer. typer.Exit with 1 if it is refused, with 4 if it is
    not known what became of it. A script gets an answer in JSON in either case.
    """
    is_given = False
    try:
        with _reach(order, node, arguments) as (ask, wait_s, again_s):
            until = None if wait_s is None else time.monotonic() + wait_s
            answer = _answer(order, ask(order.word, arguments))
            is_given, shown_at = True, time.monotonic()
            while answer.is_under_way and (until is None or time.monotonic() < until):
                if answer.note and time.monotonic() >= shown_at:
                    shown_at = time.monotonic() + _PROGRESS_S
                    typer.echo(lines(answer.note), err=True)
                time.sleep(again_s)
                answer = _answer(order, ask(f"{order.word}-progress", {}))
    except NoAnswerError as error:
        if not (error.was_sent or is_given):
            _refuse(str(error), as_json=as_json)
        if as_json:
            typer.echo(json_line(Answer(note=str(error), is_under_way=True)))
        _end(f"not known: {error}", exits.UNKNOWN)
    except RefusedError as error:
        _refuse(str(error), as_json=as_json)
    _print(answer, as_json=as_json)
    if not answer.is_under_way:
        if answer.note:
            typer.echo(lines(answer.note), err=True)
    else:
        how = "not known: " if order.late_code == exits.UNKNOWN else "" if answer.text else "refused: "
        _end(f"{how}{order.late}", order.late_code)


def _read(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except UNDECODABLE:
        raise RefusedError("the node is of a release that answers otherwise") from None


def _answer(order: Order, answer: bytes) -> Answer:
    read = _read(answer, order.answer)
    if read.refusal:
        raise RefusedError(read.refusal)
    return read


def _refuse(why: str, *, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(json_line(Answer(refusal=why)))
    _end(f"refused: {why}", exits.FAILED)


def _end(text: str, code: int) -> NoReturn:
    typer.echo(lines(text), err=True)
    raise typer.Exit(code)


# --- what is printed ----------------------------------------------------------------------------------------


def _print(answer: Answer, *, as_json: bool) -> None:
    rows: Sequence[msgspec.Struct] | None = getattr(answer, "rows", None)
    if as_json:
        is_listing = rows is not None and (rows or not answer.text)
        for value in (rows or ()) if is_listing else (answer,):
            typer.echo(json_line(value))
    elif answer.text:
        typer.echo(lines(answer.text))
    elif rows:
        table_of: Callable[[Any], Table] = _TABLES.get(type(rows[0]), _plain_table)
        print_tables(table_of(rows))


def _plain_table(rows: Sequence[Any]) -> Table:
    """A listing without a table of its own: a column for each field."""
    names = rows[0].__struct_fields__
    shown = table([name.replace("_", " ").upper() for name in names])
    for row in rows:
        shown.add_row(*(cell(getattr(row, name)) for name in names))
    return shown


def _workers_table(workers: Sequence[ListedWorker]) -> Table:
    """Only a worker of ours says which process it is. The clock of this machine is the node's."""
    shown = table(("ID", "SERVICE", "SPEAKS"), ("HOLDS", "AT MOST"))
    for heading in ("HOST", "PID", "ADDRESS", "VERSION", "SINCE", "NOTE"):
        shown.add_column(heading, justify="right" if heading == "PID" else "left")
    now = datetime.now().astimezone()
    for each in workers:
        process = (each.host or "-", each.pid or "-", each.address or "-", each.version or "-")
        since = "-"
        if each.registered_s is not None:
            since = f"{now - timedelta(seconds=each.registered_s):%Y-%m-%d %H:%M:%S}"
        stuck = f"stuck for {each.silent_s:.0f} s" if each.silent_s else ""
        note = f"drained by {each.drain_why}" if each.drain_why else stuck
        service = f"{each.service} {each.service_version}" if each.service_version else each.service
        values = (each.worker, service, each.dialect, each.in_flight, each.credit)
        shown.add_row(*map(cell, (*values, *process, since, note)))
    return shown


def _requests_table(requests: Sequence[RequestState]) -> Table:
    shown = table(("ID", "SERVICE", "CLIENT"), ("REQUESTS", "AGE S", "BYTES"))
    shown.add_column("WHERE")
    for each in requests:
        words = (each.request, each.service, f"{each.client} {each.dialect}")
        numbers = (each.requests, f"{each.age_s:.3f}", each.body_bytes)
        shown.add_row(*map(cell, (*words, *numbers, _where(each))))
    return shown


def _where(state: RequestState) -> str:
    if state.worker:
        times = "" if state.deliveries == 1 else f", after {state.deliveries - 1} lost workers"
        given_up = "given up: " if state.is_given_up else ""
        return f"{given_up}worker {state.worker} for {state.held_s:.3f} s{times}"
    return f"waits, for {state.expires_in_s:.0f} s more at most"


_TABLES: Final[dict[type, Callable[[Any], Table]]] = {
    ListedWorker: _workers_table,
    RequestState: _requests_table,
}


# --- what is checked here first -----------------------------------------------------------------------------


def _check_primary(settings: Settings, ask: Ask, arguments: Mapping[str, object]) -> None:
    """A backup is promoted only if nothing listens where its primary does, or the operator knows better.

    The node is asked first: if it hears its primary, what listens there needs no mending.
    """
    refuse(
        settings.role != "backup",
        "role is primary: a primary that is alone serves with the next request and needs no promotion",
    )
    order = next(order for order in ORDERS if order.command == "promote")
    if _answer(order, ask(order.word, {"is_trial": True})).text or arguments["is_forced"]:
        return
    peer = settings.endpoints.peer_state
    found, why = probe(peer)
    if found == "listens":
        text = (
            f"a process listens at {peer}, so the primary may live: restart it or end it, and mend the link. "
            "Only if that is not the primary (a proxy, another program): --force"
        )
        raise RefusedError(text)
    if found == "unreachable":
        text = (
            f"{peer} cannot be reached ({why}), so it is not known whether the primary lives and serves "
            "others. Make sure that it is off and stays off, then: --force"
        )
        raise RefusedError(text)


_CHECKS: Final = {"promote": _check_primary}


# --- the commands -------------------------------------------------------------------------------------------


def commands() -> dict[str, Any]:
    """The commands by name: functions, and groups of commands."""
    found: dict[str, Any] = {}
    for order in ORDERS:
        group, _, verb = order.command.rpartition(" ")
        if not group:
            found[verb] = command(order)
        elif group in GROUPS:
            if group not in found:
                found[group] = typer.Typer(
                    name=group, no_args_is_help=True, add_completion=False, help=GROUPS[group]
                )
            add_to(found[group], order)
    return found


def add_to(group: typer.Typer, order: Order) -> None:
    """Enter an order into its group of commands."""
    group.command(order.command.rpartition(" ")[2])(grouped(command(order)))


def command(order: Order) -> Callable[..., None]:
    """The function of an order's command."""
    fields = {field.name: field for field in msgspec.structs.fields(order.request)}

    def run(node: NodeConfiguration, as_json: bool, elsewhere: Elsewhere | None = None, **given: Any) -> None:
        arguments = {name: _value(fields[name], each) for name, each in given.items() if each is not None}
        if elsewhere is not None and elsewhere.endpoint is not None:
            give(order, elsewhere, arguments, as_json=as_json)
            return
        refuse(
            elsewhere is not None and elsewhere.epoch is not None, "--epoch is for orders with --endpoints"
        )
        where = "" if order.is_local else " or, with --endpoints, elsewhere"
        text = (
            "no configuration: name the node's with --config FILE or BSTAR_CONFIG. An order goes to one node "
            f"on this machine{where}: BSTAR_ENDPOINTS does not lead there"
        )
        refuse(node.config is None and not node.assignments, text)
        give(order, node.settings(), arguments, as_json=as_json)

    json_help = "Print JSON; of a listing one object per line."
    only = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *(_parameter(field) for field in fields.values() if _meta(field) is not None),
        inspect.Parameter("node", only, annotation=NodeConfiguration),
        *([] if order.is_local else [inspect.Parameter("elsewhere", only, annotation=Elsewhere)]),
        inspect.Parameter(
            "as_json", only, default=False, annotation=Annotated[bool, typer.Option("--json", help=json_help)]
        ),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect looks there
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__name__ = order.command
    run.__doc__ = _help(order)
    return run


def _meta(field: Any) -> msgspec.Meta | None:
    """What a person reads of an argument; None if it is not a person's."""
    return next((each for each in get_args(field.type) if isinstance(each, msgspec.Meta)), None)


def _parameter(field: Any) -> inspect.Parameter:
    """An argument of an order as Typer takes it."""
    meta, kind = _meta(field), get_args(field.type)[0]
    assert meta is not None
    extra = meta.extra or {}
    default = inspect.Parameter.empty if field.required else field.default
    if extra["metavar"] == "TIME":
        kind, default = (str, default) if field.required else (str | None, None)
    metavar, help_ = extra["metavar"], meta.description
    low, high = (meta.ge, meta.le) if kind is int else (None, None)
    shown: object = typer.Argument(metavar=metavar, help=help_)
    if names := extra.get("names"):
        shown = typer.Option(*names, metavar=metavar, help=help_, min=low, max=high)
    only = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, only, default=default, annotation=Annotated[kind, shown])


def _value(field: Any, value: Any) -> object:
    """What a person wrote, as the order has it. ConfigurationError if it cannot be that."""
    meta = _meta(field)
    extra = (meta and meta.extra) or {}
    option = extra.get("names", ("",))[0]
    if option == "--reason":
        refuse(len(value) > _REASON_CHARS_MAX, f"--reason: write {_REASON_CHARS_MAX} characters at most")
        return who(value)
    if extra.get("metavar") == "TIME":
        assert meta is not None
        seconds, most = seconds_of(value, option), meta.le or 0
        refuse(not 0 < seconds <= most, f"{option} {value}: write more than 0 and at most {most / 3600:.0f}h")
        return seconds
    return value


def _help(order: Order) -> str:
    examples = [f"    bstar {order.command} {example}" for example in order.examples]
    elsewhere = "; it takes no --endpoints."
    if not order.is_local:
        elsewhere = ". Or run it elsewhere with -e and a key that may give orders (docs/security.md)."
        examples += [_CONFIG.sub(_ELSEWHERE, examples[0])]
    listed = "\n\n".join(examples)
    return (
        f"{order.about}\n\nRun it on the machine of {order.at}, as the user that runs the node, with that "
        f"node's --config{elsewhere} {order.more}"
        f"\n\nExit codes: 0 {order.done}; 1 {order.refused}; 2 wrong usage or configuration; 4 not known: "
        f"the node got it and is silent.\n\nExamples:\n\n{listed}"
    )
