"""The arbiter as a process runs it: one ROUTER socket around the pure ``ArbiterMachine``.

It serves any number of pairs. It keeps ballots in memory alone, and in-sync sets of durable stores in its
state directory if it has one. An operator may stop and start it at any time; docs/operations.md says what
that costs. There is no logic here.
"""

import logging
from collections import Counter
from typing import TYPE_CHECKING

import zmq

from bstar.base.closing import Closing
from bstar.errors import ConfigurationError, RemoteProtocolError
from bstar.net.curve import Gate, NodeSecurity
from bstar.net.http_endpoint import HttpEndpoint, HttpPlace
from bstar.net.listener import Listener
from bstar.net.reactor import Reactor
from bstar.net.sockets import new_router, receive, send, set_up_listener
from bstar.net.zap_socket import serve
from bstar.pair.in_sync_file import InSyncFile
from bstar.security.zap import PEERS
from bstar.star.arbiter import ArbiterMachine, ArbiterOutput, BallotGiven, BallotReturned, Reply, TableFull
from bstar.star.in_sync import InSyncSets, KeepSets, SetOutput
from bstar.wire.arbiter import MESSAGE_BYTES_MAX, decode_question, encode_answer

if TYPE_CHECKING:
    from bstar.pair.arbiter_http import ArbiterFigures

_log = logging.getLogger("bstar.arbiter")

# Two nodes a pair; TCP pushes back on a node that asks faster than it reads.
_QUEUE_MESSAGES = 1_000
_BURST_MAX = 200
# The machine hears of longer pauses of the process. Its promises last longer than that.
_STALL_LIMIT_S = 0.05


class ArbiterServer(Closing):
    """The third voter, listening at ``endpoint``. ``run`` blocks until SIGTERM, SIGINT or ``stop``.

    With ``security`` it takes CURVE connections of peers alone. ``sets`` keeps the in-sync sets of durable
    stores; the server closes it. Raises ConfigurationError when the endpoint cannot be bound.
    """

    def __init__(
        self, endpoint: str, security: NodeSecurity | None = None, sets: InSyncFile | None = None
    ) -> None:
        self._file = sets
        self.drops: Counter[str] = Counter()
        self._is_closed = False
        self._reactor = Reactor()
        self.machine = ArbiterMachine(now=self._reactor.now())
        self.sets = InSyncSets(None if sets is None else sets.sets, now=self._reactor.now())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = socket = new_router(self._context)
        socket.linger = 0
        set_up_listener(socket)
        socket.sndhwm = socket.rcvhwm = _QUEUE_MESSAGES
        socket.maxmsgsize = MESSAGE_BYTES_MAX
        # Half-open connections of nodes whose hosts are gone.
        socket.heartbeat_ivl = 5_000
        socket.heartbeat_timeout = 15_000
        self._gate = None if security is None else Gate(self._context, self._reactor, security)
        if security is not None:
            serve(socket, security.key, PEERS)
        try:
            self._listener = Listener(self._reactor, socket, endpoint, is_keyed=security is not None)
        except zmq.ZMQError as error:
            socket.close(0)
            if self._gate is not None:
                self._gate.close()
            self._context.term()
            self._reactor.close()
            raise ConfigurationError(
                f"--bind: cannot bind {endpoint}: {error.strerror}. Does another arbiter run here, or is the "
                "address not one of this machine?"
            ) from error
        if self._gate is not None:
            self._gate.guard(self._listener, PEERS)
            self._gate.security.on_change(self._follow_trust)
        self._probes: HttpEndpoint | None = None
        self._reactor.add_source(socket, self._on_readable)
        self._reactor.add_machine(self.machine.next_deadline, self._on_deadline)
        self._reactor.on_stall(_STALL_LIMIT_S, self._on_stall)

    def serve_http(self, place: HttpPlace | None) -> str | None:
        """Serve health and metrics there until ``close``, and return the URL. ConfigurationError."""
        if place is None:
            return None
        from bstar.pair.arbiter_http import ArbiterProbes  # noqa: PLC0415 - most arbiters serve none

        self._probes = ArbiterProbes(place, self._figures)
        return self._probes.url

    def _figures(self, timeout_s: float) -> "ArbiterFigures":
        from bstar.pair.arbiter_http import ArbiterFigures  # noqa: PLC0415

        machine = self.machine
        future = self._reactor.call_threadsafe(
            lambda: ArbiterFigures(machine.questions, machine.refusals, machine.pairs, dict(self.drops))
        )
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def run(self) -> None:
        """Serve until ``stop`` is called."""
        self._reactor.run()

    def stop(self) -> None:
        """Ask ``run`` to end, from any thread."""
        self._reactor.stop()

    def close(self) -> None:
        """Free the socket and the context. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._probes is not None:
            self._probes.close()
        self._listener.close()
        self._reactor.remove(self._socket)
        self._socket.close(0)
        if self._gate is not None:
            self._gate.close()
        self._reactor.close()
        self._context.term()
        if self._file is not None:
            self._file.close()

    def _follow_trust(self, is_any_gone: bool) -> None:
        """The list of principals has changed: a key that is no peer's any more claims nothing more."""
        if is_any_gone:
            self._listener.hang_up_all()

    # --- in and out ---------------------------------------------------------------------------------------

    def _on_readable(self, now: float) -> None:
        for _ in range(_BURST_MAX):
            try:
                frames = receive(self._socket)
            except zmq.Again:
                return
            try:
                question = decode_question(frames[1:])
            except RemoteProtocolError as error:
                self.drops[error.reason] += 1
                if self.drops[error.reason] == 1:
                    _log.warning("%s: %s; the next ones are only counted", error.reason, error.text)
                continue
            if question.store is not None:
                self._carry_out_sets(self.sets.receive(question, question.store, now), frames[0])
                continue
            # Read the clock after the message: a promise must not begin before its question.
            self._carry_out(self.machine.receive(question, self._reactor.now()), frames[0])

    def _on_deadline(self, now: float) -> None:
        self._carry_out(self.machine.handle_timer(now))

    def _on_stall(self, gap_s: float, now: float) -> None:
        self._carry_out(self.machine.stalled(gap_s, now))

    def _carry_out(self, outputs: list[ArbiterOutput], routing_id: bytes = b"") -> None:
        for output in outputs:
            match output:
                case Reply():
                    self._send([routing_id, *encode_answer(output.answer)])
                case BallotGiven():
                    _log.info(
                        "pair %s: the ballot is the %s's, run %s", output.pair, output.role, output.node
                    )
                case BallotReturned(has_expired=True):
                    _log.warning("pair %s: the ballot is free, the %s fell silent", output.pair, output.role)
                case BallotReturned():
                    _log.info("pair %s: the ballot is free, the %s gave it back", output.pair, output.role)
                case TableFull():
                    _log.error("pair %s is refused: the arbiter has as many pairs as it may", output.pair)

    def _carry_out_sets(self, outputs: list[SetOutput], routing_id: bytes) -> None:
        """A set is stored before its leader hears of it."""
        for output in outputs:
            match output:
                case KeepSets():
                    _log.info("%s", output.text)
                    if self._file is not None:
                        self._file.is_behind = True
                case Reply():
                    if self._file is None or not self._file.is_behind or self._file.keep(self.sets.all):
                        self._send([routing_id, *encode_answer(output.answer)])
                case TableFull():
                    _log.error("pair %s is refused: the arbiter has as many stores as it may", output.pair)

    def _send(self, frames: list[bytes]) -> None:
        try:
            send(self._socket, frames)
        except zmq.Again:
            self.drops["reader-too-slow"] += 1
