"""Which tests share a process, and which begin first, under pytest-xdist (``make test``, ``make chaos``).

The tests of a file stay in one process and share its fixtures. So do those of files that ask for the same
tables, and those that ask for a session of Spark: there is one of each.
Each chaos test is a run of its own, wherever it runs. The order is about time alone: what is long and begins
last keeps one process busy while the others wait.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

# Files that share what takes long to make: the tables of support.planted_root, and the session of Spark.
_SESSIONS = (
    (
        "pipeline_incidents",
        "pipeline_truth",
        "pipeline_planted",
        "pipeline_durables",
        "pipeline_outages",
        "pipeline_clocks",
        "pipeline_silver",
        "pipeline_bronze",
    ),
    ("calls", "pipeline_store", "pipeline_plans", "pipeline_sketch", "pipeline_session"),
)
# The longest of the others, the longest first.
_LONG = (
    "pipeline_cluster",
    "pipeline_kill",
    "pipeline_midnight",
    "pipeline_job",
    "pipeline_watch",
    "pipeline_report_tables",
    "pair_scenarios",
    "store_sim",
    "sim",
    "alerts",
    "switchover",
    "epoch_liars",
    "docs_programs",
    "bounds_loopback",
    "security_loopback",
    "cli_streams",
    "promote",
    "arbiter_process",
    "cli",
    "state_publisher",
    "bench",
    "mutants",
    "fleet_loopback",
    "explorer",
    "durable_pair",
    "malformed_storm",
    "demo",
    "store_kill",
    "pipeline_report",
    "published_broker_crashes",
    "pair",
    "chaos_power",
    "compose_keys",
    "takeover_pause",
    "store_power",
    "load",
    "journal_loopback",
    "flood",
    "pzq",
    "durable_demo",
    "emq_fuzz",
    "keepalive_loopback",
    "fronts_keys",
    "bench_peers",
    "bench_fleet",
    "broker_model",
    "bundles_model",
    "example",
    "unclosed",
    "testing_kit",
)
_SCOPES = {f"tests/test_{file}.py": f"session {n}" for n, files in enumerate(_SESSIONS) for file in files}
# Its tests look at one run.
_CHAOS_JOURNAL = "chaos-tests/test_pair_journal.py"
_ORDER = [
    *_SCOPES,
    *(f"tests/test_{file}.py" for file in _LONG),
    _CHAOS_JOURNAL,
    "chaos-tests/test_dead_machine.py",
    "chaos-tests/test_exploratory.py",
    "chaos-tests/test_partitions.py",
]


class _Scheduler(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a process the tests of one file, or of all files that share a session, or one chaos test."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        if file.startswith("chaos-tests/") and file != _CHAOS_JOURNAL:
            return nodeid
        return _SCOPES.get(file, file)

    # A process runs a test once it has heard which one follows, or that none does. LoadScopeScheduling gives
    # one that takes the place of a dead one a single unit, perhaps one that is done: the run would not end.

    def remove_node(self, node: WorkerController) -> str | None:
        units = self.assigned_work[node]
        for scope in [scope for scope, tests in units.items() if all(tests.values())]:
            del units[scope]
        crashed: str | None = super().remove_node(node)
        return crashed

    def schedule(self) -> None:
        super().schedule()
        for node in self.nodes:
            self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduler:
    """Keep the order in which tests were collected."""
    config.option.loadscopereorder = False
    return _Scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Four processes for two cores: most of what a test does is to wait for other processes."""
    return 2 * (os.cpu_count() or 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long files first; pytest-randomly's order stays within a file and between the others."""
    rank = {file: number for number, file in enumerate(_ORDER)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(rank)))
