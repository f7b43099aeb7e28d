"""The demo's processes: a pair of the test kit and its workers, watched while they run, and its client."""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bstar.errors import BstarError
from bstar_broker.core.snapshot import NodeState
from bstar_cli.engine import Counts, SteadyCalls
from bstar_client import HAClient, JournalSettings
from bstar_testing import HarnessError, Node, Pair, Process, wait_until

PAIR = "demo"
SERVICE = "demo"
WORKERS = 2

_STEP_S_MAX = 45.0
_END_S_MAX = 15.0
# Each look asks both nodes for their state. More looks would take CPU time from what is shown.
_LOOK_S = 0.05
# Requests outstanding at most: without answers the load waits instead of piling up.
_WINDOW = 64
# Far longer than any failover, so that a call fails only if its request is lost.
_CALL_TIMEOUT_S = 15.0


class Load(SteadyCalls):
    """The client. ``calls`` are the times of sending and of the reply, of those that were answered."""

    def __init__(self, client: HAClient, rate: float) -> None:
        self.client = client
        self.calls: list[tuple[float, float]] = []
        self.failures: list[str] = []
        super().__init__(
            client,
            SERVICE,
            rate=rate,
            window=_WINDOW,
            on_answer=lambda sent, answered, _: self.calls.append((sent, answered)),
            on_failure=self._note_failure,
        )

    def _note_failure(self, number: int, _sent_at: float, _ended_at: float, error: BstarError) -> None:
        self.failures.append(f"request {number}: {type(error).__name__}: {error}")


class Stage(Pair):
    """The pair in a folder of its own. ``on_look`` is called whenever something may have changed.

    ``journals``: the directory in which all processes keep their journals, if any.
    """

    def __init__(
        self, on_look: Callable[[], None], journals: Path | None = None, *, has_store: bool = False
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="bstar-demo-"))
        super().__init__(folder, name=PAIR, journals=journals, has_store=has_store)
        self._on_look = on_look
        self._is_interrupted = False
        self._load: Load | None = None
        self.progress = Counts(0, 0, 0, 0)
        self.states: dict[str, NodeState | None] = {}
        """What each node said of itself at the last look, by role; None if it did not answer."""

    def interrupt(self) -> None:
        """Let ``wait`` raise KeyboardInterrupt. Elsewhere it could come between a start and its note."""
        self._is_interrupted = True

    def close(self) -> None:
        """End the client and every process in good order, and kill those that do not end. Idempotent."""
        if self._load is not None:
            self._load.client.close()
            self._load.finish()
        with suppress(HarnessError):
            self.stop(_END_S_MAX)
        super().close()

    def remove(self) -> None:
        """Remove the folder with configurations and logs."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- processes ----------------------------------------------------------------------------------------

    def launch_demo_workers(self, rate: float, handler: str = "handle") -> None:
        """Start the workers, with room for the rate and for the peak after an outage."""
        self.launch_workers(
            WORKERS,
            f"bstar_cli.demo_worker:{handler}",
            service=SERVICE,
            credit=max(8, round(rate * 0.05)),
            environment={"DEMO_EXECUTIONS": str(self.folder / "executions")},
        )

    def launch_load(self, rate: float) -> Load:
        """Start the client; its threads are of this process."""
        kept = self.journals
        journal = None if kept is None else JournalSettings(str(kept), pair=PAIR, name="client")
        self._load = Load(self.client(timeout=_CALL_TIMEOUT_S, journal=journal), rate)
        return self._load

    def finish_node(self, node: Node) -> None:
        """SIGTERM, and wait for the end in good order."""
        node.terminate()
        self.finish(node)

    def finish_workers(self) -> list[str]:
        """Stop the workers; the numbers of all requests that they executed, one for each execution."""
        for worker in self.workers:
            worker.terminate()
            self.finish(worker)
        return (self.folder / "executions").read_text().splitlines()

    def finish(self, process: Process, limit_s: float = _STEP_S_MAX) -> None:
        """Wait until this process has ended in good order."""
        self.wait(f"the {process.name} ends", lambda: not process.is_running, ending=process, limit_s=limit_s)
        if process.wait_exit() != 0:
            raise HarnessError(f"the {process.name} ended with {process.exit_code} instead of in good order")

    # --- waiting ------------------------------------------------------------------------------------------

    def wait(
        self,
        what: str,
        has_come: Callable[[], bool],
        *,
        ending: Process | None = None,
        limit_s: float = _STEP_S_MAX,
    ) -> None:
        """Look until it has come; HarnessError if it does not, or if another process than ``ending`` ends."""

        def look() -> bool:
            self._look()
            if self._is_interrupted:
                raise KeyboardInterrupt
            if has_come():
                return True
            for process in self.odd_ends:
                if process is not ending:
                    raise HarnessError(
                        f"the {process.name} ended with {process.exit_code} while waiting: {what}"
                    )
            return False

        wait_until(look, what, limit_s=limit_s, look_s=_LOOK_S)

    def wait_answers(self, count: int, what: str) -> None:
        """Wait until ``count`` more requests have been answered."""
        goal = self.progress.answered + count
        self.wait(what, lambda: self.progress.answered >= goal)

    def is_in(self, node: Node, state: str) -> bool:
        """True if the node is in this state, with every worker registered."""
        seen = self.states[node.role]
        return (
            seen is not None
            and seen.pair.state == state
            and seen.broker.is_serving == (state == "ACTIVE")
            and seen.broker.workers == WORKERS
        )

    def _look(self) -> None:
        self.states = {node.role: node.look() for node in self.nodes}
        self.read_progress()
        self._on_look()

    def read_progress(self) -> None:
        """Look how far the client is."""
        if self._load is not None:
            self.progress = self._load.counts()

    def summary(self) -> str:
        """How far the client is, for the watcher."""
        progress = self.progress
        return (
            f"sent {progress.sent}   answered {progress.answered}   waiting {progress.waiting}   "
            f"crossed {progress.crossed}   failed {progress.failed}"
        )
