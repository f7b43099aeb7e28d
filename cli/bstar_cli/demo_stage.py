"""The demo's processes: real brokers, workers and a client on free loopback ports, in a folder of their own.

Everything that is started here is ended here, each process by its own id, whatever happens. Nothing is
awaited by sleeping: ``wait`` returns when what was expected is seen, and says what did not come otherwise.
"""

import http.client
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Self, cast

import msgspec

from bstar.settings import RoleName
from bstar_broker.core.snapshot import NodeState
from bstar_cli.demo_load import CALL_TIMEOUT_S, Outcome
from bstar_cli.steady import Counts

__all__ = ["PAIR", "SERVICE", "WORKERS", "DemoError", "Node", "Stage"]

PAIR = "demo"
SERVICE = "demo"
WORKERS = 2

_STEP_S_MAX = 45.0
_END_S_MAX = 15.0
_LOOK_S = 0.05
_HTTP_S_MAX = 1.0

_decode_state = msgspec.json.Decoder(NodeState).decode
_decode_progress = msgspec.json.Decoder(Counts).decode


class DemoError(Exception):
    """Something expected did not come, or a process ended that should live."""


class Node:
    """One broker: its process and what it last said of itself."""

    def __init__(self, role: RoleName, config: Path, endpoint: str, http_port: int) -> None:
        self.role = role
        self.config = config
        self.endpoint = endpoint
        self.http_port = http_port
        self.process: subprocess.Popen[bytes] | None = None
        self.state: NodeState | None = None

    @property
    def is_running(self) -> bool:
        """Is there a process?"""
        return self.process is not None and self.process.poll() is None

    def look(self) -> None:
        """Ask the node for its state over HTTP; None if it does not answer."""
        self.state = None
        if not self.is_running:
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=_HTTP_S_MAX)
        try:
            connection.request("GET", "/status")
            response = connection.getresponse()
            if response.status == http.HTTPStatus.OK:
                self.state = _decode_state(response.read())
        except (OSError, http.client.HTTPException):
            pass  # it is starting or gone
        finally:
            connection.close()

    def is_in(self, state: str) -> bool:
        """Is the node in this state, with every worker registered?"""
        return (
            self.state is not None
            and self.state.pair.state == state
            and self.state.broker.is_serving == (state == "ACTIVE")
            and self.state.broker.workers == WORKERS
        )


class Stage:
    """A folder, ports, and processes. ``on_look`` is called whenever something may have changed.

    ``journals``: the directory in which all processes keep their journals, if any.
    """

    def __init__(self, on_look: Callable[[], None], journals: Path | None = None) -> None:
        self._on_look = on_look
        # The processes need not stand where this one does.
        self._journals = None if journals is None else str(journals.absolute())
        self._is_interrupted = False
        self.folder = Path(tempfile.mkdtemp(prefix="bstar-demo-"))
        self._children: list[subprocess.Popen[bytes]] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self._load: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._pending = b""
        self.progress = Counts(0, 0, 0, 0)
        # A socket that is bound and never listens keeps a port ours while no broker holds it.
        self._holders = [_hold() for _ in range(6)]
        ports = [int(holder.getsockname()[1]) for holder in self._holders]
        self.primary = self._node("primary", ports[0], ports[1], ports[3], ports[4])
        self.backup = self._node("backup", ports[2], ports[3], ports[1], ports[5])
        self.nodes = (self.primary, self.backup)
        self.endpoints = f"{self.primary.endpoint},{self.backup.endpoint}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def interrupt(self) -> None:
        """Let ``wait`` raise KeyboardInterrupt. Elsewhere it could come between a start and its note."""
        self._is_interrupted = True

    def close(self) -> None:
        """End every process that was started here. Idempotent."""
        living = [child for child in self._children if child.poll() is None]
        for child in living:
            child.terminate()
        until = time.monotonic() + _END_S_MAX
        for child in living:
            try:
                child.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()
        self._selector.close()
        for holder in self._holders:
            holder.close()

    def remove(self) -> None:
        """Remove the folder with configurations and logs."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- processes ----------------------------------------------------------------------------------------

    def start_node(self, node: Node) -> None:
        """Start a broker."""
        node.process = self._start(node.role, "-m", "bstar_cli", "serve", "--config", str(node.config))

    def start_workers(self, rate: float) -> None:
        """Start the workers, with room for the rate and for the peak after an outage."""
        credit = max(8, round(rate * 0.05))
        for number in range(1, WORKERS + 1):
            self._workers.append(
                self._start(
                    f"worker{number}",
                    *("-m", "bstar_cli", "worker", "--service", SERVICE, "--endpoints", self.endpoints),
                    *("--credit", str(credit), "bstar_cli.demo_worker:handle"),
                    *self._journal_options(f"worker{number}"),
                    environment={"DEMO_EXECUTIONS": str(self.folder / f"executions{number}")},
                )
            )

    def start_load(self, rate: float) -> None:
        """Start the client."""
        self._load = self._start(
            "client",
            *("-m", "bstar_cli.demo_load", self.endpoints, SERVICE, str(rate), str(self.folder / "outcome")),
            *(() if self._journals is None else (self._journals, PAIR)),
            is_piped=True,
        )
        assert self._load.stdout is not None
        os.set_blocking(self._load.stdout.fileno(), False)
        self._selector.register(self._load.stdout, selectors.EVENT_READ)

    def _journal_options(self, name: str) -> tuple[str, ...]:
        if self._journals is None:
            return ()
        return ("--journal", self._journals, "--journal-pair", PAIR, "--journal-name", name)

    def kill(self, node: Node) -> None:
        """SIGKILL: the process has no chance to say goodbye."""
        assert node.process is not None
        node.process.kill()
        node.process.wait()

    def stop(self, node: Node) -> None:
        """SIGTERM, and wait for the end in good order."""
        assert node.process is not None
        process = node.process
        process.send_signal(signal.SIGTERM)
        self.wait(f"the {node.role} ends", lambda: process.poll() is not None, ending=process)
        if process.returncode != 0:
            raise DemoError(f"the {node.role} ended with {process.returncode} instead of in good order")

    def finish_load(self) -> Outcome:
        """Let the client send nothing more, and wait for what is outstanding."""
        load = self._load
        assert load is not None
        assert load.stdin is not None
        load.stdin.close()
        self.wait(
            "the client ends",
            lambda: load.poll() is not None,
            ending=load,
            limit_s=CALL_TIMEOUT_S + _STEP_S_MAX,
        )
        self._load = None
        if load.returncode != 0:
            raise DemoError(f"the client ended with {load.returncode}")
        return msgspec.json.decode((self.folder / "outcome").read_bytes(), type=Outcome)

    def finish_workers(self) -> list[str]:
        """Stop the workers; the numbers of all requests that they executed, one for each execution."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.terminate()
        for worker in workers:
            self.wait("the workers end", partial(_has_ended, worker))
        return [
            number
            for path in sorted(self.folder.glob("executions*"))
            for number in path.read_text().splitlines()
        ]

    def _node(self, role: RoleName, clients: int, state: int, peer_state: int, http_port: int) -> Node:
        config = self.folder / f"{role}.yaml"
        endpoint = f"tcp://127.0.0.1:{clients}"
        settings = {
            "pair": PAIR,
            "role": role,
            "profile": "lan",
            "state_dir": str(self.folder / f"{role}-state"),
            "endpoints": {
                "clients": endpoint,
                "state": f"tcp://127.0.0.1:{state}",
                "peer_state": f"tcp://127.0.0.1:{peer_state}",
            },
            "http": {"bind": f"127.0.0.1:{http_port}"},
            **({} if self._journals is None else {"journal": {"directory": self._journals}}),
        }
        # JSON is YAML too.
        config.write_bytes(msgspec.json.format(msgspec.json.encode(settings), indent=2))
        return Node(role, config, endpoint, http_port)

    def _start(
        self, name: str, *arguments: str, environment: Mapping[str, str] | None = None, is_piped: bool = False
    ) -> "subprocess.Popen[bytes]":
        # Variables of the user's own pair must not reach the demo's.
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("BSTAR_")}
        with (self.folder / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, *arguments],
                stdin=subprocess.PIPE if is_piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if is_piped else log,
                stderr=log,
                env=inherited | dict(environment or {}),
                start_new_session=True,  # Ctrl-C is for the demo alone, which ends its processes in order
            )
        self._children.append(child)
        return child

    # --- waiting ------------------------------------------------------------------------------------------

    def wait(
        self,
        what: str,
        has_come: Callable[[], bool],
        *,
        ending: "subprocess.Popen[bytes] | None" = None,
        limit_s: float = _STEP_S_MAX,
    ) -> None:
        """Look until it has come. DemoError if it does not, or if a process ends that is not ``ending``."""
        until = time.monotonic() + limit_s
        while True:
            self._look()
            if self._is_interrupted:
                raise KeyboardInterrupt
            if has_come():
                return
            for child in self._children:
                if child.poll() is not None and child is not ending and self._is_needed(child):
                    raise DemoError(f"a process ended with {child.returncode} while waiting: {what}")
            if time.monotonic() >= until:
                raise DemoError(f"did not come within {limit_s:g} s: {what}")

    def wait_answers(self, count: int, what: str) -> None:
        """Until so many more requests have been answered."""
        goal = self.progress.answered + count
        self.wait(what, lambda: self.progress.answered >= goal)

    def _is_needed(self, child: "subprocess.Popen[bytes]") -> bool:
        needed = [*self._workers, self._load, *(node.process for node in self.nodes)]
        return any(child is each for each in needed) and not self._was_killed(child)

    def _was_killed(self, child: "subprocess.Popen[bytes]") -> bool:
        """Nodes are killed and stopped on purpose; one that ends in any other way is a failure."""
        is_node = any(child is node.process for node in self.nodes)
        return is_node and child.returncode in (0, -signal.SIGKILL)

    def _look(self) -> None:
        for node in self.nodes:
            node.look()
        for key, _ in self._selector.select(_LOOK_S):
            self._read_progress(cast("IO[bytes]", key.fileobj))
        if not self._selector.get_map():
            time.sleep(_LOOK_S)  # nothing tells of itself yet: look again in a moment
        self._on_look()

    def _read_progress(self, pipe: IO[bytes]) -> None:
        octets = os.read(pipe.fileno(), 65_536)
        if not octets:
            self._selector.unregister(pipe)
            return
        *lines, self._pending = (self._pending + octets).split(b"\n")
        if lines:
            self.progress = _decode_progress(lines[-1])


def _has_ended(child: "subprocess.Popen[bytes]") -> bool:
    return child.poll() is not None


def _hold() -> socket.socket:
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder
