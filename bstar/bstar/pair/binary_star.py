"""Make any ZeroMQ server highly available.

Two processes run the same server, one as primary and one as backup. Each has one ``BinaryStar``. It publishes
this node's state to the peer, reads the peer's, and asks the machine whether it may serve a client's request:

    star = BinaryStar("primary", local="tcp://*:5003", remote="tcp://backup:5004")
    star.voter("tcp://*:5001", zmq.ROUTER, handle)      # handle(socket, frames), only while this node serves
    star.start()

Source: zguide chapter 4, Binary Star and its reactor class; BST-S-01 to BST-R-05.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import zmq

from bstar.base.closing import Closing
from bstar.errors import ConfigurationError, LocalProtocolError
from bstar.net.io_threads import keep_apart, new_context
from bstar.net.listener import Listener
from bstar.net.reactor import Reactor
from bstar.pair.arbiter_link import Arbiter
from bstar.pair.epoch_file import EpochFile, EpochKeeper
from bstar.pair.shell import PairLinks, PairShell
from bstar.star import Activated, Deactivated, Handover, Output, Role, StarMachine, StarSettings, Vote

Voter = Callable[["zmq.Socket[bytes]", list[bytes]], None]
Handler = Callable[[], None]


class BinaryStar(Closing):
    """One node of a pair, over ZeroMQ.

    ``role`` is "primary" or "backup". ``local`` is the endpoint where this node publishes its state (bound),
    ``remote`` the peer's (connected to). Both nodes must agree on ``pair`` and on the timing, in seconds.
    With a ``failover_timeout_max_s`` above ``failover_timeout_s`` they adapt the timeout between the two.
    ``state_dir`` keeps the epoch across restarts. ``on_dual_active`` is "yield" or "exit".
    ``expire_on_refused``: a peer whose connection broke and whose endpoint then refuses connections is dead
    at once, without the failover timeout. It needs a direct link: a proxy or firewall that refuses in the
    peer's name would be believed. ``arbiter`` is the endpoint of a ``bstar arbiter`` process, or another kind
    of arbiter (``bstar.pair.arbiter_link.Arbiter``). With it at most one node serves in every partition. Both
    nodes must have it. ``machine`` is your own ``StarMachine`` with the same settings.

    ConfigurationError for wrong settings, zmq.ZMQError if an endpoint cannot be bound.
    """

    def __init__(
        self,
        role: Role | str,
        *,
        local: str,
        remote: str,
        pair: str = "bstar",
        heartbeat_interval_s: float = 1.0,
        failover_timeout_s: float = 2.0,
        failover_timeout_max_s: float = 0.0,
        on_dual_active: str = "yield",
        expire_on_refused: bool = True,
        arbiter: str | Arbiter | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        reactor: Reactor | None = None,
        context: "zmq.Context[zmq.Socket[bytes]] | None" = None,
        machine: StarMachine | None = None,
    ) -> None:
        # Check the configuration before anything opens.
        self._epochs = EpochKeeper(EpochFile(state_dir)) if state_dir is not None else None
        settings = StarSettings(
            pair=pair,
            role=_role(role),
            heartbeat_interval_s=heartbeat_interval_s,
            failover_timeout_s=failover_timeout_s,
            failover_timeout_max_s=failover_timeout_max_s,
            on_dual_active=on_dual_active,  # type: ignore[arg-type]  # the settings check it
            arbiter=arbiter if isinstance(arbiter, str) else "" if arbiter is None else arbiter.name,
        )
        self._on_active: list[Handler] = []
        self._on_passive: list[Handler] = []
        self._has_voter = False
        # Closed in the reverse order of opening.
        with ExitStack() as resources:
            epoch = 0
            if self._epochs is not None:
                resources.callback(self._epochs.close)
                epoch = self._epochs.open()
            self._context = context if context is not None else new_context(3)
            if context is None:
                resources.callback(self._context.term)
            self.reactor = reactor if reactor is not None else Reactor()
            if reactor is None:
                resources.callback(self.reactor.close)
            if machine is None:
                machine = StarMachine(
                    settings, node=os.urandom(16).hex(), epoch=epoch, now=self.reactor.now()
                )
            self.machine = machine
            self._shell = PairShell(
                machine,
                settings,
                PairLinks(local, remote, arbiter, expire_on_refused),
                self.carry_out,
                epochs=self._epochs,
                reactor=self.reactor,
                context=self._context,
            )
            resources.callback(self._shell.close)
            self._resources = resources.pop_all()

    # --- for the server -----------------------------------------------------------------------------------

    @property
    def epoch_error(self) -> str:
        """Why the epoch of the last activation is not in ``state_dir``; "" if it is, or need not be."""
        return "" if self._epochs is None else self._epochs.error

    def voter(self, endpoint: str, socket_type: int, handler: Voter) -> "zmq.Socket[bytes]":
        """Bind the socket whose messages are votes; one per instance.

        ``handler(socket, frames)`` gets the messages that this node may serve. It drops the others; their
        senders hear nothing and ask the other node.
        """
        if self._has_voter:
            raise LocalProtocolError("a BinaryStar has one voter: serve everything on that socket")
        socket = self._context.socket(socket_type)
        self._resources.callback(socket.close)
        keep_apart(socket, 0)
        socket.linger = 0
        socket.ipv6 = True
        listener = Listener(self.reactor, socket, endpoint)

        def on_request(frames: list[bytes], now: float) -> None:
            if self.may_serve(now):
                handler(socket, frames)

        self.reactor.add_reader(socket, on_request)
        self._resources.callback(self.reactor.remove, socket)
        self._resources.callback(listener.close)
        self._has_voter = True
        return socket

    def may_serve(self, now: float) -> bool:
        """Ask whether this node serves one client request; a vote while the node is not active."""
        if now >= self.machine.serve_until:
            self._shell.step(Vote(), now)
        return now < self.machine.serve_until

    def on_active(self, handler: Handler) -> Handler:
        """Call ``handler()`` each time this node begins to serve. Usable as a decorator."""
        self._on_active.append(handler)
        return handler

    def on_passive(self, handler: Handler) -> Handler:
        """Call ``handler()`` each time this node stops serving. Usable as a decorator."""
        self._on_passive.append(handler)
        return handler

    def handover(self) -> None:
        """Give the active role to the peer, if it can take it. From the loop's thread."""
        self._shell.step(Handover(), self.reactor.now())

    def promote(self, *, is_trial: bool = False) -> str | None:
        """Let this lone backup serve; you vouch that its primary does not run. From the loop's thread.

        Returns None if it serves, a sentence if it refuses, "" if it claims the majority first (with an
        arbiter). With ``is_trial`` it changes nothing and returns "" if it would not refuse.
        """
        return self._shell.promote(is_trial=is_trial)

    def start(self) -> None:
        """Run until ``reactor.stop()``, SIGTERM or SIGINT. Raises PairError when the pair cannot go on."""
        self._shell.run()

    def carry_out(self, outputs: Sequence[Output]) -> None:
        """Carry out the machine's outputs, in order."""
        for output in outputs:
            self._shell.perform(output)
            if type(output) is Activated:
                for handler in self._on_active:
                    handler()
            elif type(output) is Deactivated:
                for handler in self._on_passive:
                    handler()

    def close(self) -> None:
        """Close the sockets, and the reactor and context if this object made them. Idempotent."""
        self._resources.close()


def _role(role: Role | str) -> Role:
    try:
        return Role(role)
    except ValueError:
        raise ConfigurationError(f"role is {role!r}: choose 'primary' or 'backup'") from None
