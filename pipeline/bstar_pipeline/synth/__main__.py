"""``python -m bstar_pipeline.synth FOLDER``: a synthetic journal from the command line."""

import argparse
import sys
import time
from dataclasses import fields
from pathlib import Path

from bstar.errors import ConfigurationError
from bstar_pipeline.synth import SynthSettings, Truth, generate

_ABOUT = {
    "seed": "the same seed gives the same bytes",
    "pairs": "how many pairs",
    "start": "time of the first record, ISO 8601",
    "days": "how long the journal is; fractions of a day are fine",
    "requests": "request records of nodes in all; 0: as --requests-per-s gives",
    "requests_per_s": "of each pair, on the average of a day",
    "daily_swing": "0 to 1: by how much the rate swings in a day",
    "growth_per_day": "0.01: the rate grows by one per cent a day",
    "services": "how many services",
    "clients": "how many clients",
    "workers": "how many workers, over all services",
    "busy_us": "what a handler of the first service takes in the mean",
    "incidents": "how many to draw for each pair",
    "violations": "how many broken promises to plant in each pair",
    "sample": "share of requests that are recorded",
    "clock_skew_us": "wall clock of the backup's machine against the primary's",
    "clock_step_us": "step of the primary's wall clock in the middle",
    "segment_lines": "about how many records a file has",
    "finish": "last files of running processes: sealed or open",
    "processes": "of this machine; 0: one for each core",
}
_FLAGS = {
    "has_client_journals": "journals of clients, too",
    "has_worker_journals": "journals of workers, too",
}


def main(arguments: list[str] | None = None) -> int:
    """Generate, showing progress on stderr. 0, or 2 for a wrong setting."""
    parser = argparse.ArgumentParser(prog="python -m bstar_pipeline.synth", description=__doc__)
    parser.add_argument("folder", type=Path, help="journal/ and truth.json are written into it")
    for field in fields(SynthSettings):
        name = "--" + field.name.replace("_", "-")
        if field.name in _FLAGS:
            parser.add_argument(name, action="store_true", help=_FLAGS[field.name])
        elif field.name in _ABOUT:
            default = 0 if field.name in ("incidents", "violations") else field.default
            parser.add_argument(
                name, type=type(default), default=default, help=f"{_ABOUT[field.name]} ({default})"
            )
    given = vars(parser.parse_args(arguments))
    folder: Path = given.pop("folder")
    began = time.monotonic()
    try:
        truth = generate(SynthSettings(**given), folder, _bar)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    _tell(truth, time.monotonic() - began)
    return 0


def _bar(done: int, total: int) -> None:
    """One line that is written over."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{done:,} of {total:,} records ({100 * done // max(1, total)} %) ")


def _tell(truth: Truth, took_s: float) -> None:
    rate = truth.records / max(took_s, 1e-9)
    sys.stderr.write(
        f"\n{truth.records:,} records in {truth.files} files, {len(truth.incidents)} incidents, "
        f"{len(truth.violations)} violations; {took_s:.1f} s, {rate:,.0f} records/s\n"
    )


if __name__ == "__main__":
    sys.exit(main())
