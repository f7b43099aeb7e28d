"""Synthetic journals of any size, with the truth beside them: for tests, for benchmarks, and for a first try
of the pipeline.

``generate(settings, folder)`` writes ``folder/journal`` in the very format of the real ones, and
``folder/truth.json``: which incidents are in it and when they began, which promises were broken on purpose,
and exact totals. The same settings give the same bytes. It needs no Spark.
"""

from bstar_pipeline.synth.generate import JOURNAL, TRUTH, Progress, generate
from bstar_pipeline.synth.settings import INCIDENT_KINDS, VIOLATION_KINDS, Incident, SynthSettings, Violation
from bstar_pipeline.synth.truth import Truth, TruthIncident, TruthViolation, read_truth

__all__ = [
    "INCIDENT_KINDS",
    "JOURNAL",
    "TRUTH",
    "VIOLATION_KINDS",
    "Incident",
    "Progress",
    "SynthSettings",
    "Truth",
    "TruthIncident",
    "TruthViolation",
    "Violation",
    "generate",
    "read_truth",
]
