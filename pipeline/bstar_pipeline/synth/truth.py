"""What is really in a synthetic journal: the incidents, the violations and exact totals.

It is written as ``truth.json`` beside the journal's folder, never into it, so that no reader can find it
there. All times are microseconds since 1970 on the true clock, which the journal's records only know through
their machine's.
"""

from pathlib import Path

import msgspec


class TruthIncident(msgspec.Struct, frozen=True, kw_only=True):
    """One incident: ``kind`` as in gold.incidents. ``node`` and ``boot`` of the run that was hit (of a
    partition and of two actives: the one that had served before). ``ended_at_us``: the process was there
    again, the link healed, or the overlap ended; None: not in this journal.
    """

    pair: str
    kind: str
    node: str
    boot: str
    began_at_us: int
    ended_at_us: int | None = None
    detected_at_us: int | None = None
    taken_over_at_us: int | None = None
    successor: str = ""
    epoch: int = 0


class TruthViolation(msgspec.Struct, frozen=True, kw_only=True):
    """One planted violation: ``rule`` as in gold.audit, ``kind`` how it was planted."""

    pair: str
    rule: str
    kind: str
    client: str = ""
    number: int = 0
    at_us: int
    duration_us: int = 0


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """``requests`` counts identities by pair, service and outcome (as silver.requests tells it);
    ``node_records`` counts the brokers' request records by outcome; ``calls`` and ``executions`` those of
    clients and workers. ``records`` counts readable lines, ``torn`` those cut off by a kill, ``files`` all
    files. ``weight`` is what a request record stands for (1 without sampling).
    """

    seed: int
    pairs: list[str]
    start_us: int
    end_us: int
    records: int
    torn: int
    files: int
    requests: dict[str, dict[str, dict[str, int]]]
    node_records: dict[str, int]
    calls: dict[str, int]
    executions: int
    weight: float
    incidents: list[TruthIncident]
    violations: list[TruthViolation]

    def write(self, path: Path) -> None:
        """As JSON that a person can read."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def read_truth(path: Path) -> Truth:
    """What ``Truth.write`` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Truth)
