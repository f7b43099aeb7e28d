"""A client's session and the two nodes that it knows, ``primary`` and ``backup``: one line of a script each.

``new`` is a session that knows nothing (settings follow, ``alone``: with one node), ``served`` one whose
primary serves and whose backup stands by, ``plain`` one of MDP/0.2 (or ``01``) with both connected, unless
``unconnected``. Without a broker it is a ``pirate`` (``servers=``, ``timeout=``, ``asks-once``), a ``star``
(``settle=``), ``shotgun`` or ``flp`` of ``one``, ``two`` and ``three``. ``call NAME`` begins a call:
``for=2`` is its timeout (``for=-``: none), ``once`` forbids a second execution, then ``stream``, ``key=``,
``headers``, ``service=``, ``body=``, ``bytes=``, ``to=`` one worker, ``progress``. ``together`` begins
several in one turn. A node ``connects`` or ``says`` how it stands (``epoch=``, ``peer=``, ``retry=`` and
``timeout=`` in milliseconds, ``lacks=`` a feature), ``refuses`` a call so, and answers. ``wait`` lets time
pass; ``8 times wait 0.25; primary says ACTIVE`` does all of it again and again.

Seen: ``->`` is sent: the calls of one message, the epoch, what is left of their time, and what the request
allows; PINGs are counted. ``*`` is for observers, ``=`` tells what has changed, a call's name its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from bstar.errors import RejectedError
from bstar.star import State
from bstar.wire import messages as wire
from bstar.wire import native, refusals
from bstar.wire.extensions import headers_extensions
from bstar.wire.messages import NodeStatus
from bstar.wire.native_broker import NativeAsker
from bstar.wire.progress import Progress
from bstar_client.core.calls import Call, Reply
from bstar_client.core.events import Connected
from bstar_client.core.native.session import Session
from bstar_client.core.outputs import Announce, Deliver, DeliverAll, Fail, Output, Report, Reset, Send
from bstar_client.core.plain.attempt_session import AttemptSession, Mdp01Session, Mdp02Session
from bstar_client.core.session_settings import SessionSettings
from support import brokerless_desk
from support.brokerless_desk import AnySession
from support.client_desk import CODEC, ENDPOINTS, Desk, read_all, status
from support.client_outputs import SessionDesk
from support.stage import Stage, frame_of, options_of, text_of

_PAIR, _SERVERS = ("primary", "backup"), ("one", "two", "three")
_STATES = {"SILENT": 0} | {state.name: int(state) for state in State}
_COMMANDS = {getattr(native, name): [name] for name in ("DIRECTED", "CANCEL")}
_FLAGS = {"again": native.FLAG_REDELIVERED, "urgent": native.FLAG_URGENT, "once": native.FLAG_ONCE}
_HEADERS = headers_extensions({"tenant": "blue", "traceparent": "00-1-2-01"})
# What every script sees anyway.
_DULL = ("requests", "replies", "failures")


def _status(words: list[str]) -> NodeStatus:
    options = options_of(words[1:])
    numbers = {"retry": "retry_after_ms", "timeout": "timeout_ms", "epoch": "epoch"}
    given = {numbers[name]: int(value) for name, value in options.items() if name in numbers}
    told = status(_STATES[words[0]], peer=_STATES[options.get("peer", "SILENT")], **given)
    features = wire.ALL_FEATURES & ~getattr(wire, options["lacks"]) if "lacks" in options else told.features
    return msgspec.structs.replace(told, features=features)


class _Desk(Desk):
    """A desk that shows all that its session puts out, in order."""

    show: Callable[[Output], None]

    def take(self, outputs: list[Output]) -> None:
        super().take(outputs)
        for output in outputs:
            self.show(output)


class _PlainDesk(SessionDesk):
    """The same of a plain client, and of one without a broker."""

    now = 100.0

    def __init__(self, session: AttemptSession | AnySession, show: Callable[[Output], None]) -> None:
        super().__init__()
        self.session: AttemptSession | AnySession = session
        self.show = show

    def take(self, outputs: Sequence[Output]) -> None:
        super().take(outputs)
        for output in outputs:
            self.show(output)


class ClientStage(Stage):
    """A client and two nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._desk: _Desk | _PlainDesk
        self._calls: dict[str, Call] = {}
        self._is_waiting = False
        self._nodes: tuple[str, ...] = _PAIR
        # The timeout of a call that names none.
        self._call_s: float | None = 30.0

    def peer_of(self, name: str) -> int:
        return self._nodes.index(name)

    # --- the session and its calls --------------------------------------------------------------------------

    def do_new(self, words: list[str]) -> None:
        options = options_of(words)
        endpoints = ENDPOINTS[:1] if options.pop("alone", None) is not None else ENDPOINTS
        limits: dict[str, Any] = {name: int(value) for name, value in options.items()}
        self._calls.clear()
        desk = self._desk = _Desk(endpoints, SessionSettings(**limits))
        desk.show = self._show
        self._began_at = self._desk.now
        self.begin()

    def do_plain(self, words: list[str]) -> None:
        """One of MDP/0.2, or of MDP/0.1, that is connected to both nodes."""
        options = options_of(words)
        is_connected = options.pop("unconnected", None) is None
        kind = Mdp01Session if options.pop("01", None) is not None else Mdp02Session
        limits: dict[str, Any] = {name: int(value) for name, value in options.items()}
        self._calls.clear()
        session = kind(ENDPOINTS, now=_PlainDesk.now, settings=SessionSettings(**limits))
        self._desk = _PlainDesk(session, self._show)
        self._began_at = self._desk.now
        if is_connected:
            self._desk.connect(0, 1)
        self.begin()

    def do_pirate(self, words: list[str]) -> None:
        options = options_of(words)
        count, timeout = int(options.get("servers", 1)), float(options.get("timeout", 2.5))
        self._make(brokerless_desk.pirate(count, timeout=timeout, once="asks-once" in options))

    def do_star(self, words: list[str]) -> None:
        self._make(brokerless_desk.star(float(options_of(words).get("settle", 2))))

    def do_shotgun(self, words: list[str]) -> None:
        self._make(brokerless_desk.shotgun())

    def do_flp(self, words: list[str]) -> None:
        self._make(brokerless_desk.flp(*map(int, words)))

    def _make(self, made: brokerless_desk.Desk) -> None:
        self._calls.clear()
        self._nodes, self._call_s = _SERVERS, made.call_s
        self._desk = _PlainDesk(made.session, self._show)
        self._began_at = self._desk.now
        self.begin()

    @property
    def _native(self) -> _Desk:
        assert isinstance(self._desk, _Desk)
        return self._desk

    def do_served(self, words: list[str]) -> None:
        self.do_new(words)
        self._native.connect(0, status(State.ACTIVE, peer=State.PASSIVE))
        self._native.connect(1, status(State.PASSIVE, peer=State.ACTIVE, retry_after_ms=1000))
        self.begin()

    def _begin(self, name: str, options: dict[str, str]) -> Call:
        timeout = options.get("for", f"{self._call_s}")
        body = [frame.encode() for frame in options.get("body", name).split(",")]
        call = Call(
            options.get("service", "echo" if self._nodes is _PAIR else "").encode(),
            [bytes(int(options["bytes"]))] if "bytes" in options else body,
            None if timeout == "-" else self._desk.now + float(timeout),
            "once" not in options,
            "stream" in options,
            key=options["key"].encode() if "key" in options else None,
            begun_at=self._desk.now,
        )
        if "to" in options:
            call.is_directed = True
            call.body.insert(0, options["to"].encode())
        call.on_progress = print if "progress" in options else None
        if "headers" in options:
            call.extensions = _HEADERS
        self._calls[name] = call
        return call

    def do_call(self, words: list[str]) -> None:
        call = self._begin(words[0], options_of(words[1:]))
        self._desk.take(self._desk.session.submit(call, self._desk.now))

    def do_together(self, words: list[str]) -> None:
        """Names, ``+`` and what all of them have in common; a service before a name is its own."""
        names, _, common = " ".join(words).partition(" + ")
        calls = []
        for word in names.split():
            name, *own = word.split("/")
            calls.append(self._begin(name, options_of([*common.split(), *own])))
        self._desk.take(self._desk.session.submit_all(calls, self._desk.now))

    def do_unsent(self, names: list[str]) -> None:
        """A call that the session does not have."""
        self._begin(names[0], {})

    def do_outcome(self, words: list[str]) -> None:
        """A call of the primary's ends, and an interrupt loses what the session put out."""
        answer = CODEC.final(
            NativeAsker(b"", self._calls[words[0]].identity), b"", 1, 0, [words[1].encode()], b""
        )
        self._desk.session.receive(0, answer[1:], self._desk.now)

    def do_submit(self, names: list[str]) -> None:
        """Calls that the session may have already."""
        self._desk.take(self._desk.session.submit_all(self._named(names), self._desk.now))

    def do_abandon(self, names: list[str]) -> None:
        for call in self._named(names):
            self._desk.take(self._desk.session.abandon(call, self._desk.now))

    def do_restart(self, names: list[str]) -> None:
        self._desk.take(self._desk.session.restart(self._named(names), self._desk.now))

    def do_close(self, words: list[str]) -> None:
        self._desk.take(self._desk.session.close(self._desk.now))

    def _named(self, names: list[str]) -> list[Call]:
        return [self._calls[name] for name in names]

    # --- time -----------------------------------------------------------------------------------------------

    def do_wait(self, words: list[str]) -> None:
        self._is_waiting = True
        self._desk.wait(float(words[0]))
        self._is_waiting = False

    def do_late(self, words: list[str]) -> None:
        """Nothing has run for so long."""
        self._desk.now += float(words[0])

    def do_away(self, words: list[str]) -> None:
        """The process stands still; then it looks at its timers."""
        self._desk.now += float(words[0])
        self._desk.take(self._desk.session.handle_timer(self._desk.now))

    # --- nodes ----------------------------------------------------------------------------------------------

    def peer_connects(self, node: int, words: list[str]) -> None:
        self._desk.connect(node)
        if words:
            self.peer_says(node, words)

    def peer_breaks(self, node: int, words: list[str]) -> None:
        session, now = self._desk.session, self._desk.now
        self._desk.take(session.disconnected(node, now, is_untrusted="untrusted" in words))

    def peer_says(self, node: int, words: list[str]) -> None:
        self._native.pong(node, _status(words))

    def peer_refuses(self, node: int, words: list[str]) -> None:
        """One call, or several with commas."""
        names, *said = words
        was_dispatched = "dispatched" in said
        told = _status([word for word in said if word != "dispatched"])
        for call in self._named(names.split(",")):
            self._native.refuse(node, call, told, was_dispatched=was_dispatched)

    def peer_final(self, node: int, words: list[str]) -> None:
        """One reply; or several in one message, ``a=A b=B``."""
        name, *rest = words
        options = options_of(rest)
        body = next((word for word in rest if not word.startswith("parts=")), "done")
        self._native.final(node, self._calls[name], body.encode(), int(options.get("parts", 0)))

    def peer_finals(self, node: int, words: list[str]) -> None:
        pairs = options_of(words).items()
        calls = self._named([name for name, _ in pairs])
        numbers = [int.from_bytes(call.identity[16:], "big") for call in calls]
        bodies = [body.encode() for _, body in pairs]
        self._native.hear(node, [b"", *native.encode_finals(calls[0].identity[:16], 1, numbers, bodies)])

    def peer_partial(self, node: int, words: list[str]) -> None:
        name, index, *body = words
        self._native.partial(node, self._calls[name], int(index), "".join(body or ["part"]).encode())

    def peer_error(self, node: int, words: list[str]) -> None:
        name, code, *reason = words
        number = int(code) if code.isdigit() else wire.ErrorCode[code]
        text = getattr(refusals, reason[0]).text if reason else "because"
        self._native.error(node, self._calls[name], number, text.encode())

    def peer_progress(self, node: int, words: list[str]) -> None:
        """How far the handler of a call is; or frames that are none."""
        name, *said = words
        identity = self._calls[name].identity
        frames = native.encode_progress(identity, 1, Progress(0))[:1] + [frame_of(each) for each in said]
        if said and said[0].isdigit():
            frames = native.encode_progress(identity, 1, Progress(float(said[0])))
        self._native.hear(node, [b"", *frames])

    def peer_busy(self, node: int, words: list[str]) -> None:
        self._native.busy(node, self._calls[words[0]], int(words[1]))

    def peer_frames(self, node: int, words: list[str]) -> None:
        """Any message."""
        frames = [frame_of(word) for word in words]
        self._desk.take(self._desk.session.receive(node, frames, self._desk.now))

    def peer_plain_final(self, node: int, words: list[str]) -> None:
        self.peer_frames(node, ["MDPC02", "\\x03", "echo", *(words or ["done"])])

    def peer_plain_partial(self, node: int, words: list[str]) -> None:
        self.peer_frames(node, ["MDPC02", "\\x02", "echo", *words])

    # --- what is seen ---------------------------------------------------------------------------------------

    def _show(self, output: Output) -> None:
        now = f"{round(self._desk.now - self._began_at, 3):g}: " if self._is_waiting else ""
        self.seen += [f"{now}{text}" for text in self._texts_of(output)]

    def _texts_of(self, output: Output) -> Iterator[str]:
        match output:
            case Send(node, [b"PING"]):
                self.counted[f"-> {self._nodes[node]} PING"] += 1
            case Send(node, frames) if not frames[0].startswith(b"\xb5"):
                yield f"-> {self._nodes[node]} {' '.join(map(text_of, frames))}"
            case Send(node, frames):
                yield from self._sent(self._nodes[node], read_all(frames))
            case Reset(node):
                yield f"a new socket for the {self._nodes[node]}"
            case Deliver(call, reply):
                yield f"{self._name_of(call)}: {self._reply(reply)}"
            case DeliverAll(outcomes):
                yield from (f"{self._name_of(call)}: {self._reply(reply)}" for call, reply in outcomes)
            case Fail(call, error):
                unknown = {True: ", may have been executed", False: ", not executed", None: ""}
                may = getattr(error, "may_have_executed", None)
                later_s = getattr(error, "retry_after_s", None)
                later = f", again after {later_s:.3g} s" if later_s is not None else ""
                yield f"{self._name_of(call)}: {type(error).__name__}{unknown[may]}{later}"
            case Report(call, progress):
                yield f"{self._name_of(call)}: {progress}"
            case Announce(Connected()) if self._nodes is _SERVERS:
                return
            case Announce(event):
                yield f"* {type(event).__name__} {' '.join(map(_value, msgspec.structs.astuple(event)))}"

    def _sent(self, node: str, messages: list[native.Message]) -> Iterator[str]:
        first = messages[0]
        if first.command == native.PING:
            self.counted[f"-> {node} PING"] += 1
            return
        words = [name for name, flag in _FLAGS.items() if first.flags & flag]
        if first.command == native.REQUEST and not first.flags & native.FLAG_WHOLE:
            words.append("stream")
        if first.command == native.DIRECTED:
            words.append(f"to {text_of(first.body[0])}")
        times = list(dict.fromkeys(message.value for message in messages))
        calls = " ".join(
            self._name_by(each.identity) + "+headers" * (each.extensions == _HEADERS) for each in messages
        )
        about = [f"{calls} in {first.epoch}", f"{' '.join(map(str, times))} ms", *words]
        yield " ".join(["->", node, *_COMMANDS.get(first.command, ()), ", ".join(about)])

    def _reply(self, reply: Reply) -> str:
        body = " ".join(map(text_of, reply.frames))
        if not reply.is_final:
            return f"part {reply.index}, {body}"
        parts = "".join(f"{' '.join(map(text_of, part))} + " for part in reply.partials)
        attempts = f", attempt {reply.attempts}" if reply.attempts > 1 else ""
        return f"reply {parts}{body}, {_value(reply.endpoint)} after {reply.elapsed_s:g} s{attempts}"

    def _name_of(self, call: Call) -> str:
        return next(name for name, each in self._calls.items() if each is call)

    def _name_by(self, identity: bytes) -> str:
        return next(name for name, each in self._calls.items() if each.identity == identity)

    def do_why(self, words: list[str]) -> None:
        error = self._desk.error_of(self._calls[words[0]])
        code = f" ({wire.ErrorCode(error.code).name})" if isinstance(error, RejectedError) else ""
        self.seen.append(f"{error}{code}")

    def do_look(self, words: list[str]) -> None:
        session = self._desk.session
        assert isinstance(session, Session | AttemptSession)
        self.seen.append(f"{_value(session.active or 'nobody')} serves, {session.outstanding} outstanding")

    def facts(self) -> dict[str, object]:
        return {name: value for name, value in vars(self._desk.session.counters).items() if name not in _DULL}


def _value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value).removeprefix("tcp://")
