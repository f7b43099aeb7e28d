"""``bstar durable-demo``: everything is killed at once, twice, and no durable request is lost.

Real processes: two brokers with a store each, two workers, a client. The client submits requests. Both
brokers, both workers and the client die by SIGKILL while it does, and again while it fetches the answers.
Then all answers are fetched once more, and everything is counted.
"""

import signal
import sys
import time
from collections import Counter
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from bstar_cli.demo import wait_pair
from bstar_cli.demo_show import Show, counts_table, leave, perform, printer
from bstar_cli.demo_stage import SERVICE, Stage
from bstar_cli.durable_demo_load import CALL_TIMEOUT_S, read_pairs
from bstar_cli.engine import Counts
from bstar_testing import Process

_COPIES = 2
# So fast may the workers be: both together execute a thousand in a second.
_RATE = 200.0
_LIMIT_S = CALL_TIMEOUT_S + 60.0


class Report(msgspec.Struct, frozen=True):
    """The demo's result, in requests. ``executed_again`` are executions beyond the first of each.

    ``lost`` were acknowledged and have no answer; ``changed`` have another one than at the first fetch.
    """

    ok: bool
    submitted: int
    acknowledged: int
    acknowledged_before_the_kill: int
    executed: int
    executed_again: int
    answered: int
    lost: int
    changed: int
    kills: int
    seconds: float


def durable_demo(
    count: Annotated[
        int, typer.Option("--count", "-n", min=100, max=100_000, help="How many requests to submit.")
    ] = 4_000,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Submit durable requests, kill everything with SIGKILL, start it again, and fetch all answers.

    Exit codes: 0 every request was answered, always with the same answer; 1 not so, or something did not come
    (the folder with the logs is named then); 2 wrong usage; 130 interrupted.

    Examples:

        bstar durable-demo

        bstar durable-demo --count 20000

        bstar durable-demo --json | jq .lost
    """
    show = Show()
    stage = _Stage(show, count)
    report = perform(stage, show, stage.play, is_live=not as_json)
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        _print(report)
    leave(stage, is_ok=report.ok)


class _Stage(Stage):
    """The demo's processes, with a store on each node."""

    def __init__(self, show: Show, count: int) -> None:
        super().__init__(show.refresh, has_store=True)
        self._show = show
        self._count = count
        self._word = "first"
        self._launched = 0
        self._running: Process | None = None
        self._kills = 0

    def play(self) -> Report:
        """All of it."""
        say, count = self._show.say, self._count
        say("starting the primary, the backup and two workers; each broker has a store")
        for node in self.nodes:
            node.launch()
        self.launch_demo_workers(_RATE, "handle_once")
        self._wait_store()
        began_at = time.monotonic()
        say(f"the client submits {count} durable requests")
        self._launch_client("submit", str(count))
        self.wait("half of them are acknowledged", lambda: self.progress.sent >= count // 2)
        self._kill_all()
        before = len(read_pairs(self.folder / "acknowledged"))
        say(f"kill -9 of both brokers, both workers and the client: {before} were acknowledged")
        self._start_again()
        say("the client submits the rest")
        self._launch_client("submit", str(count))
        self._finish_client()
        say("all are acknowledged; the client fetches their answers")
        self._launch_client("fetch", "first")
        self.wait("half of them are fetched", lambda: self.progress.answered >= count // 2)
        self._kill_all()
        fetched = len(read_pairs(self.folder / "answers-first"))
        say(f"kill -9 of everything again: {fetched} answers had been fetched")
        self._start_again()
        say("the client fetches all answers once more")
        self._word = "second"
        self._launch_client("fetch", "second")
        self._finish_client()
        seconds = time.monotonic() - began_at
        executions = self.finish_workers()
        say("done")
        return self._report(before, executions, seconds)

    def _report(self, before: int, executions: list[str], seconds: float) -> Report:
        acknowledged = {number for number, _ in read_pairs(self.folder / "acknowledged")}
        answers = [dict(read_pairs(self.folder / f"answers-{word}")) for word in ("first", "second")]
        # An answer begins with the number; what went wrong does not.
        first, second = (
            {n: text for n, text in given.items() if text.startswith(f"{n} ")} for given in answers
        )
        lost = acknowledged - second.keys()
        changed = [number for number, text in first.items() if second.get(number, text) != text]
        executed = Counter(executions)
        return Report(
            ok=not lost and not changed and len(second) == self._count,
            submitted=self._count,
            acknowledged=len(acknowledged),
            acknowledged_before_the_kill=before,
            executed=len(executed),
            executed_again=sum(executed.values()) - len(executed),
            answered=len(second),
            lost=len(lost),
            changed=len(changed),
            kills=self._kills,
            seconds=round(seconds, 1),
        )

    # --- processes ----------------------------------------------------------------------------------------

    def _launch_client(self, *what: str) -> None:
        self._launched += 1
        argv = (sys.executable, "-m", "bstar_cli.durable_demo_load", ",".join(self.endpoints), SERVICE)
        self._running = self.start_process(f"client{self._launched}", (*argv, str(self.folder), *what))

    def _finish_client(self) -> None:
        assert self._running is not None
        self.finish(self._running, _LIMIT_S)

    def _kill_all(self) -> None:
        running = [process for process in self.processes if process.is_running]
        for process in running:
            process.send_signal(signal.SIGKILL)
        for process in running:
            process.wait_exit()
        self._kills += len(running)
        if self._running is not None and self._running not in running:
            self.finish(self._running)  # it was done before its kill

    def _start_again(self) -> None:
        for process in (*self.nodes, *self.workers):
            process.launch()
        self._wait_store()
        self._show.say("everything runs again, and the store is on both disks")

    def _wait_store(self) -> None:
        wait_pair(self)

        def is_whole() -> bool:
            stores = [state.store for state in self.states.values() if state is not None]
            return any(store is not None and store.is_leading and store.copies == _COPIES for store in stores)

        self.wait("the store is on both disks", is_whole)

    # --- looking ------------------------------------------------------------------------------------------

    def read_progress(self) -> None:
        """Count the notes of the client."""
        sent = len(read_pairs(self.folder / "acknowledged"))
        answered = len(read_pairs(self.folder / f"answers-{self._word}"))
        self.progress = Counts(sent, answered, 0, 0)

    def summary(self) -> str:
        """How far the client is."""
        return f"acknowledged {self.progress.sent} of {self._count}   fetched {self.progress.answered}"


def _print(report: Report) -> None:
    console = printer()
    rows = [
        ("requests submitted", report.submitted),
        ("acknowledged", report.acknowledged),
        ("of them before the first kill", report.acknowledged_before_the_kill),
        ("executed", report.executed),
        ("executed again", report.executed_again),
        ("answered", report.answered),
        ("lost", report.lost),
        ("changed answers", report.changed),
        ("processes killed", report.kills),
        ("seconds", report.seconds),
    ]
    counts = counts_table(rows, bad=("lost", "changed answers"))
    console.print(Text(), counts, Text(), sep="\n")
    if report.ok:
        console.print(Text("Nothing was lost and no answer changed.", style="bold green"))
    else:
        console.print(Text("Requests were lost or answers changed.", style="bold red"))
