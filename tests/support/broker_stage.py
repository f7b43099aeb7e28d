"""A broker with clients and workers in memory: one line of a script each.

``broker`` is an active one of epoch 7 with these settings, or a ``passive`` one. ``limits.`` before a
setting is a limit of the service echo, ``settled`` one that waited until its workers can have told.
``worker NAME`` registers a native worker (``service=``, ``credit=``, ``batches``, ``extended``,
``elsewhere=``: what it executes for others), ``plain-worker`` one of MDP/0.2. A name and a verb are a
message of that peer. A client ``asks`` for numbers, or ``batches`` them: ``service=``, ``ttl=`` in
milliseconds, ``body=``, ``urgent``, ``once``, ``whole``, ``repeated``; ``key=`` stands for a number,
``of=`` names another client whose numbers these are, ``to=`` the one worker that may have them. A worker
answers, ``beats`` or ``leaves``; ``says`` is any other message, frame by frame. ``wait`` lets time pass,
``later`` before the broker looks.

Seen: ``->`` is sent, without heartbeats; ``log:`` is for the log, ``=`` tells what has changed in the broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from bstar.star import State
from bstar.wire import native
from bstar.wire.batches import bodies_of, final_rows, request_rows
from bstar.wire.description import ServiceLimits
from bstar.wire.extensions import elsewhere_extension
from bstar.wire.messages import ErrorCode, Reason
from bstar.wire.native import NAME_BYTES
from bstar.wire.progress import Progress, unpack_progress
from bstar_broker.core.management import broker_state
from bstar_broker.core.records import COUNTERS
from support.desk import CLIENT_ID, Desk, ident, sent
from support.stage import Stage, frame_of, numbers_of, options_of, spans_of, text_of

EPOCH = 7
_TOLD = (
    "REQUEST", "PARTIAL", "FINAL", "ERROR", "BUSY", "NOT_ACTIVE", "PONG", "WELCOME", "HEARTBEAT",
    "DISCONNECT", "CANCEL", "REQUESTS", "FINALS", "PROGRESS",
)  # fmt: skip
_NAMES = {getattr(native, name): name for name in _TOLD}
_TIMED = (native.REQUEST, native.BUSY)
_FLAGS = {
    native.REQUEST: {
        "again": native.FLAG_REDELIVERED,
        "urgent": native.FLAG_URGENT,
        "once": native.FLAG_ONCE,
        "whole": native.FLAG_WHOLE,
    },
    native.NOT_ACTIVE: {"dispatched": native.FLAG_DISPATCHED},
}
_FLAGS[native.REQUESTS] = _FLAGS[native.REQUEST]
_NODE_ID = b"N" * 16
_IDENTITY = re.compile(r"\b[0-9a-f]{48}\b")


def _keepalive(text: str) -> bytes:
    """``W``, or ``W/2``: the second connection of a worker."""
    name, _, number = text.partition("/")
    return name.encode() * 24 if not number else name.encode() * NAME_BYTES + int(number).to_bytes(4, "big")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}:{count}" for name, count in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


class BrokerStage(Stage):
    """A broker and its peers."""

    def __init__(self) -> None:
        super().__init__()
        self._desk: Desk
        # Of requests that have another identity than the test's own client's.
        self._names: dict[bytes, str] = {}
        self._shows_heartbeats = False

    def peer(self, name: str, verb: str, words: list[str]) -> None:
        self._show(getattr(self, f"peer_{verb.replace('-', '_')}")(frame_of(name), words))

    # --- the broker -----------------------------------------------------------------------------------------

    def do_broker(self, words: list[str]) -> None:
        options = options_of(words)
        is_serving = options.pop("passive", None) is None
        is_settled = options.pop("settled", None) is not None
        settings: dict[str, Any] = {name: msgspec.json.decode(value) for name, value in options.items()}
        limits = {name: settings.pop(name) for name in [*settings] if name.startswith("limits.")}
        if limits:
            each = {name.removeprefix("limits."): value for name, value in limits.items()}
            settings["services"] = {"echo": msgspec.convert(each, ServiceLimits)}
        self._desk = Desk(is_serving=is_serving, **settings)
        if is_settled:
            known = self._desk.ledger.settings
            self._desk.wait(known.worker_heartbeat_interval_s * known.worker_liveness)
        self._names.clear()
        self.begin()

    def do_activate(self, words: list[str]) -> None:
        self._desk.broker.activate(int(words[0]))

    def do_deactivate(self, words: list[str]) -> None:
        self._show(sent(self._desk.broker.deactivate(self._desk.now)))

    def do_release(self, words: list[str]) -> None:
        """It is known who serves."""
        self._show(sent(self._desk.broker.release(self._desk.now)))

    def do_resume(self, words: list[str]) -> None:
        """It serves in its new epoch; heartbeats that ask workers are seen."""
        self._shows_heartbeats = True
        self._show(sent(self._desk.broker.resume(self._desk.now)))

    def do_drain(self, words: list[str]) -> None:
        self._desk.broker.drain()

    def do_undrain(self, words: list[str]) -> None:
        self._desk.ledger.is_draining = False

    def do_wait(self, words: list[str]) -> None:
        self._show(self._desk.wait(float(words[0])))

    def do_later(self, words: list[str]) -> None:
        """Time passes, and the broker has not looked."""
        self._desk.now += float(words[0])

    def do_away(self, words: list[str]) -> None:
        """The process stands still; heartbeats that it sends then are seen."""
        self._shows_heartbeats = True
        self._show(self._desk.away(float(words[0])))

    def do_undelivered(self, words: list[str]) -> None:
        """What was dispatched last, or as this one of all, could not be sent."""
        self._show(self._desk.undelivered(*map(int, words)))

    def do_unreachable(self, words: list[str]) -> None:
        """The connection of this peer is gone."""
        self._show(sent(self._desk.broker.unreachable(words[0].encode(), self._desk.now)))

    def do_full(self, words: list[str]) -> None:
        """The connection of this peer has no room."""
        self._show(sent(self._desk.broker.unreachable(words[0].encode(), self._desk.now, is_gone=False)))

    def do_gone(self, words: list[str]) -> None:
        """No reply can reach this peer."""
        self._desk.broker.sender_gone(frame_of(words[0]), self._desk.now)

    def do_gone_keepalive(self, words: list[str]) -> None:
        """A probe finds that this keepalive is gone."""
        self._show(sent(self._desk.broker.unreachable(_keepalive(words[0]), self._desk.now)))

    # --- workers --------------------------------------------------------------------------------------------

    def do_worker(self, words: list[str]) -> None:
        name, *rest = words
        options = options_of(rest)
        ready = native.encode_ready(
            options.get("service", "echo").encode(),
            credit=int(options.get("credit", 1)),
            takes_batches="batches" in options or "extended" in options,
            takes_extended="extended" in options,
            keepalive=_keepalive(options["keepalive"]) if "keepalive" in options else native.NO_IDENTITY,
            epoch=EPOCH if "elsewhere" in options else 0,
            extensions=elsewhere_extension(int(options["elsewhere"])) if "elsewhere" in options else b"",
        )
        self._show(self._desk.send(name.encode(), *ready))

    def do_plain_worker(self, words: list[str]) -> None:
        name, *service = words
        self._show(self._desk.ready02(name.encode(), "".join(service or ["echo"]).encode()))

    def do_take_over(self, words: list[str]) -> None:
        """Another connection has claimed this client's routing id."""
        self._show(sent(self._desk.broker.take_over(words[0].encode(), self._desk.now)))

    def _identity(self, word: str) -> bytes:
        if word.startswith("plain"):
            return native.identity(_NODE_ID, int(word.removeprefix("plain")))
        known = {name: identity for identity, name in self._names.items()}
        return known[word] if word in known else ident(int(word))

    def peer_final(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        number, *body = words
        final = native.encode_final(
            self._identity(number), 7, 0, [frame_of(each) for each in body or ["done"]]
        )
        return self._desk.send(peer, *final)

    def peer_unreadable(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        """A reply without a body."""
        return self._desk.send(peer, native.encode_final(self._identity(words[0]), 7, 0, [b"x"])[0])

    def peer_finals(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        """``3=C 1=A``, or ``1-3``."""
        if "=" not in words[0]:
            return self._desk.finals(peer, numbers_of(words))
        bodies = options_of(words)
        return self._desk.finals(peer, [*map(int, bodies)], [frame_of(each) for each in bodies.values()])

    def peer_partial(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        number, index = words
        part = native.encode_partial(self._identity(number), 7, int(index), [b"part"])
        return self._desk.send(peer, *part)

    def peer_error(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        """With a pause in milliseconds, or with a text and the frames behind it."""
        number, code, *rest = words
        if rest and not rest[0].isdigit():
            text, *behind = map(frame_of, rest)
        else:
            text, behind = b"why", [native.pack_retry(int(pause)) for pause in rest]
        return self._desk.send(
            peer, *native.encode_error(self._identity(number), 7, ErrorCode[code], text, *behind)
        )

    def peer_progress(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        """How far it is, of how much, and a text; or frames that are none."""
        number, *said = words
        identity = self._identity(number)
        if said[0].isdigit():
            total = float(said[1]) if said[1:] else None
            progress = Progress(float(said[0]), total, "".join(said[2:]))
            return self._desk.send(peer, *native.encode_progress(identity, 7, progress))
        head = native.header(native.PROGRESS, identity=identity, epoch=7)
        return self._desk.send(peer, head, *map(frame_of, said))

    def peer_stale(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        """The worker gives these requests back, since it knows a later epoch."""
        epoch, *numbers = words
        return [
            frames
            for number in numbers_of(numbers)
            for frames in self._desk.send(peer, *native.encode_stale_epoch(ident(number), int(epoch)))
        ]

    def peer_beats(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        return self._desk.send(peer, *native.encode_heartbeat(*map(int, words or ["0"])))

    def peer_leaves(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        goodbye = native.encode_disconnect(Reason.GOODBYE, 7, is_unbegun="unbegun" in words)
        return self._desk.send(peer, *goodbye)

    def peer_plain_final(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        return self._desk.final02(peer, words[0].encode(), *(frame_of(each) for each in words[1:]))

    def peer_plain_partial(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        return self._desk.partial02(peer, words[0].encode(), *(frame_of(each) for each in words[1:]))

    # --- clients --------------------------------------------------------------------------------------------

    def peer_asks(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        """Numbers; with ``key=`` none, as the key makes the identity."""
        options = options_of(word for word in words if not word[0].isdigit())
        service = options.get("service", "echo").encode()
        told: list[list[bytes]] = []
        for number in [0] if "key" in options else numbers_of(words):
            identity = ident(number)
            if "key" in options:
                identity = native.keyed_identity(service, options["key"].encode())
                self._names[identity] = options["key"]
            elif "of" in options:
                identity = native.identity(options["of"].encode().ljust(16, b"."), number)
                self._names[identity] = f"{options['of']}{number}"
            body = [frame_of(options.get("body", f"{number}"))]
            if "to" in options:
                worker = self._desk.ledger.workers.get(options["to"].encode())
                body.insert(0, worker.label.encode() if worker else frame_of(options["to"]))
            frames = native.encode_request(
                identity,
                service,
                body,
                ttl_ms=int(options.get("ttl", 0)),
                is_urgent="urgent" in options,
                is_once="once" in options,
                is_whole="whole" in options,
                is_repeated="repeated" in options,
                is_directed="to" in options,
            )
            told += self._desk.send(peer, *frames)
        return told

    def peer_batches(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        """``ttl=`` and ``body=``: one for all, or one for each with commas between."""
        options = options_of(word for word in words if not word[0].isdigit())
        numbers = numbers_of(words)
        ttls = [int(each) for each in options.get("ttl", "0").split(",")]
        bodies = [frame_of(each) for each in options["body"].split(",")] if "body" in options else None
        return self._desk.requests(
            peer,
            numbers,
            bodies if bodies is None or len(bodies) == len(numbers) else bodies * len(numbers),
            service=options.get("service", "echo").encode(),
            ttls_ms=ttls if len(ttls) == len(numbers) else ttls * len(numbers),
            is_repeated="repeated" in options,
            is_once="once" in options,
            is_whole="whole" in options,
        )

    def peer_plain_asks(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        """A client of MDP/0.2."""
        body, *service = words
        return self._desk.request02(peer, frame_of(body), "".join(service or ["echo"]).encode())

    def peer_cancels(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        return self._desk.send(peer, *native.encode_cancel(self._identity(words[0]), EPOCH))

    def peer_says(self, peer: bytes, words: list[str]) -> list[list[bytes]]:
        return self._desk.send(peer, *map(frame_of, words))

    # --- what is seen ---------------------------------------------------------------------------------------

    def _show(self, told: list[list[bytes]]) -> None:
        for to, *frames in told:
            if len(to) == len(native.NO_IDENTITY):
                self.counted[f"-> keepalive {text_of(to[:1])} is probed"] += 1
            elif text := self._told(frames):
                self.seen.append(f"-> {text_of(to)} {text}")
        self.seen += [f"log: {_IDENTITY.sub(self._named, text)}" for text in self._desk.notices]
        self._desk.notices.clear()
        self._shows_heartbeats = False

    def _told(self, frames: list[bytes]) -> str:
        """What a message says; "" for a heartbeat."""
        if not frames[0].startswith(b"\xb5"):
            is_dull = frames[1] == b"\x05" and not self._shows_heartbeats
            return "" if is_dull else " ".join(map(text_of, frames))
        message = native.decode(frames)
        if message.command == native.HEARTBEAT and not self._shows_heartbeats:
            return ""
        words = [name for name, flag in _FLAGS.get(message.command, {}).items() if message.flags & flag]
        if message.epoch != EPOCH:
            words.append(f"in {message.epoch}")
        about = self._about(message, frames)
        return " ".join(filter(None, [_NAMES.get(message.command, ""), *about, *words]))

    def _about(self, message: native.Message, frames: list[bytes]) -> Iterator[str]:
        body, value = map(text_of, message.body), message.value
        match message.command:
            case native.HEARTBEAT:
                return
            case native.WELCOME:
                welcome = native.decode_welcome(message)
                yield f"every {welcome.heartbeat_ms} of {welcome.expiry_ms} ms"
            case native.PONG | native.NOT_ACTIVE:
                status = native.decode_status(message)
                yield self._name(message.identity)
                yield f"{State(status.state).name} {status.epoch}"
            case native.DISCONNECT:
                yield Reason(value).name
            case native.PROGRESS:
                yield self._name(message.identity)
                yield f"{unpack_progress(message.body)}"
            case native.REQUESTS:
                numbers, ttls_ms, lengths, is_extended = request_rows(frames, 1)
                yield spans_of(numbers)
                yield " ".join(f"{each} ms" for each in dict.fromkeys(ttls_ms) if each)
                yield from map(text_of, [] if is_extended else bodies_of(frames[2], lengths))
                yield f"aged {value} ms" if value else ""
            case native.FINALS:
                numbers, lengths = final_rows(frames, 1)
                yield " ".join(map(str, numbers))
                yield from map(text_of, bodies_of(frames[2], lengths))
            case _:
                yield self._name(message.identity)
                yield f"#{value}" if message.command == native.PARTIAL else ""
                yield from body if message.command != native.ERROR else (ErrorCode(value).name, *body)
                yield f"extended {message.extensions.hex()}" if message.extensions else ""
                yield f"{value} ms" if value and message.command in _TIMED else ""
                yield f"after {value}" if value and message.command == native.FINAL else ""

    def _name(self, identity: bytes) -> str:
        number = int.from_bytes(identity[16:], "big")
        owner = {CLIENT_ID: "", _NODE_ID: "plain"}.get(identity[:16], "?")
        return "" if identity == native.NO_IDENTITY else self._names.get(identity, f"{owner}{number}")

    def _named(self, found: re.Match[str]) -> str:
        return self._name(bytes.fromhex(found[0]))

    def do_look(self, words: list[str]) -> None:
        ledger = self._desk.ledger
        held = [f"{text_of(worker.routing_id)}:{worker.held}" for worker in ledger.workers.values()]
        services = [
            f"{text_of(each.name)}: {each.workers} workers, {each.tally.accepted} accepted, "
            f"{each.tally.answered} answered, {sum(each.tally.latency_counts)} timed"
            f"{f', {len(each.directed)} directed' if each.directed else ''}"
            for each in ledger.services.values()
        ]
        asked = [f"{text_of(client)}:{count}" for client, count in ledger.requests_of.items()]
        identities, bundles = len(ledger.by_identity), len(self._desk.broker.bundles)
        self.seen += [
            f"held {' '.join(held) or 'nothing'}",
            f"asked {' '.join(asked) or 'nothing'}; {identities} by identity, {bundles} bundles",
            f"services {'; '.join(services) or 'none'}",
            *(["awaited"] if self._desk.broker.is_awaited else []),
        ]

    def do_state(self, words: list[str]) -> None:
        """What the node publishes of its services, without latencies."""
        state = broker_state(self._desk.ledger, self._desk.now)
        for kind, services in (("", state.services), ("forgotten ", state.past)):
            for service in services:
                told = msgspec.structs.asdict(service)
                about = [
                    f"{name} {_shown(value)}"
                    for name, value in told.items()
                    if value and name != "service" and not name.startswith("latency")
                ]
                self.seen.append(f"{kind}{service.service}: {', '.join(about)}")

    def facts(self) -> dict[str, object]:
        ledger = self._desk.ledger
        waiting = ledger.waiting
        facts: dict[str, object] = {
            "workers": " ".join(map(text_of, ledger.workers)) or "none",
            "waiting": f"{waiting.count} in {waiting.size_bytes} bytes" if waiting.count else "none",
        }
        for service in ledger.services.values():
            counts = {name: getattr(service.tally, name) for name in COUNTERS}
            counts["stuck"] = service.stuck
            facts |= {
                f"{text_of(service.name)} {name}": count
                for name, count in counts.items()
                if name not in ("accepted", "answered")
            }
        return facts | {f"dropped as {reason}": count for reason, count in ledger.drops.items() if count}
