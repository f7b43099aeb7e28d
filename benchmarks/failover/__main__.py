"""Measure the outage that clients see, on real processes: ``make bench-failover``.

    make bench-failover                                    everything, about 25 minutes, into docs/failover.md
    make bench-failover TRIALS=5 PROFILES=lan FAULTS=kill,stop OVERLOAD_S=0    less, and only printed

It prints each trial, and at the end the table of docs/failover.md, also when a target was missed. Status 0:
every target was met; 1: one was missed, or something asked for could not be measured.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import cast, get_args

import zmq

from bstar.settings.timing import ProfileName
from failover import lanes, overload, report
from failover.stand import FAULTS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="failover", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=30, help="of each fault in each profile; 0: none")
    parser.add_argument("--profiles", default="auto,guide", help=f"of {', '.join(get_args(ProfileName))}")
    parser.add_argument("--faults", default=",".join(FAULTS), help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--overload-s", type=float, default=600.0, help="length of the overload; 0: none")
    parser.add_argument("--overload-bytes", type=int, default=0, help="more bytes in each of its requests")
    parser.add_argument("--seed", type=int, default=1, help="of the moments at which faults are made")
    parser.add_argument("--write", type=Path, help="a page whose part between two markers is replaced")
    parser.add_argument("--keep", action="store_true", help="keep the histories and logs")
    return parser


def _split(text: str, known: Sequence[str], what: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write; the exit status."""
    asked = _parser().parse_args(arguments)
    profiles = cast("list[ProfileName]", _split(asked.profiles, get_args(ProfileName), "profile"))
    faults = _split(asked.faults, list(FAULTS), "fault") if asked.trials else []
    if asked.trials < 0:
        sys.exit("a number of trials, or 0 for the overload alone")
    folder = Path(tempfile.mkdtemp(prefix="bstar-failover-"))
    print(f"failover: histories and logs are in {folder}", flush=True)
    load_before = os.getloadavg()[0]
    began = time.monotonic()
    campaign = lanes.run(lanes.Plan(profiles, faults, asked.trials, asked.seed, folder))
    troubles: list[str] = []
    seen: overload.Overload | None = None
    if asked.overload_s > 0:
        try:
            seen = overload.run(
                folder / "overload", profiles[0], asked.overload_bytes, asked.overload_s, campaign.say
            )
        except Exception as error:  # noqa: BLE001  # the table of what was measured must be written all the same
            traceback.print_exc()
            troubles.append(f"overload: did not come to its end: {type(error).__name__}: {error}")
    text = report.table(
        campaign,
        seen,
        profiles=profiles,
        faults=faults,
        circumstances=_circumstances(load_before, time.monotonic() - began),
        troubles=troubles,
    )
    print(f"\n{text}\n", flush=True)
    if asked.write is not None:
        page = asked.write.read_text("utf-8")
        asked.write.write_text(report.replace_between_markers(page, text), "utf-8")
        print(f"failover: wrote {asked.write}", flush=True)
    is_missed = bool(troubles or any(report.misses(campaign, seen, profiles, faults)))
    if not (asked.keep or is_missed):
        shutil.rmtree(folder)
    return int(is_missed)


def _circumstances(load_before: float, seconds: float) -> list[str]:
    command = os.environ.get("BSTAR_BENCH_COMMAND") or shlex.join(["python", "-m", "failover", *sys.argv[1:]])
    return [
        f"`{command}`, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, {seconds / 60:.0f} minutes",
        (
            f"{os.cpu_count()} cores ({_processor()}), {platform.system()} {platform.release()}, Python "
            f"{platform.python_version()}, libzmq {zmq.zmq_version()}; load average before it began: "
            f"{load_before:.1f}"
        ),
    ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except FileNotFoundError:
        return platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
