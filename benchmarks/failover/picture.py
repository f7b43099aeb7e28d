"""The picture of the README: what a client sees when the active node is killed, ours and the pattern's.

    python -m failover.picture                draw docs/failover-kill.svg from docs/failover-kill.json
    python -m failover.picture --trials 5     measure first, and write both files

``make failover-picture`` does the second. Each lane shows every reply of the trial with the median outage.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from failover import published
from failover.figures import longest_gap, percentile
from failover.stand import Stand

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "failover-kill.json"
PICTURE = ROOT / "docs" / "failover-kill.svg"

RATE = 50.0  # calls a second
BEFORE_S, AFTER_S = 0.5, 4.0

# The picture, in pixels.
WIDTH, HEIGHT = 860, 250
LEFT, RIGHT = 20, 840
LANE_TOP, LANE_STEP, TICK = 66, 84, 24


class Lane(msgspec.Struct):
    """The trials of one contestant."""

    name: str
    outages_s: list[float]
    replies_s: list[float]
    """When replies came in the trial with the median outage; 0 is the kill."""


class Measured(msgspec.Struct):
    """What the picture is drawn from."""

    command: str
    made_at: str
    machine: str
    calls_per_second: float
    lanes: list[Lane]


def _lane(name: str, trials: Sequence[tuple[float, list[float]]]) -> Lane:
    outages = [longest_gap(times, fault_at, fault_at + AFTER_S) for fault_at, times in trials]
    fault_at, times = trials[outages.index(percentile(outages, 50))]
    shown = [round(at - fault_at, 4) for at in times if -BEFORE_S <= at - fault_at <= AFTER_S]
    return Lane(name, [round(outage, 4) for outage in outages], shown)


def _measure_ours(trials: int) -> Iterator[tuple[float, list[float]]]:
    with (
        tempfile.TemporaryDirectory(prefix="bstar-picture-") as folder,
        Stand(Path(folder), "lan", rate=RATE, seed=1) as stand,
    ):
        for _ in range(trials):
            fault_at = stand.trial("kill").fault_at
            stand.follower.wait_for_answers(int((AFTER_S + BEFORE_S) * RATE))
            yield fault_at, list(stand.follower.reply_times)


def _measure_published(trials: int) -> Iterator[tuple[float, list[float]]]:
    for _ in range(trials):
        with ExitStack() as stack:
            held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
            ports = [each.getsockname()[1] for each in held]
        yield published.trial(ports, rate=RATE, before_s=BEFORE_S, after_s=AFTER_S + BEFORE_S)


def measure(trials: int) -> Measured:
    """Kill the active node so many times, in one pair of each kind."""
    kinds: dict[str, Callable[[int], Iterator[tuple[float, list[float]]]]] = {
        "bstar, profile lan": _measure_ours,
        "published pattern, its defaults": _measure_published,
    }
    load = os.getloadavg()[0]
    lanes = [_lane(name, list(run(trials))) for name, run in kinds.items()]
    return Measured(
        command=f"make failover-picture TRIALS={trials}",
        made_at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        machine=(
            f"{os.cpu_count()} cores, load average {load:.1f} before and {os.getloadavg()[0]:.1f} after"
            + (f", niceness {os.nice(0)}" if os.nice(0) else "")
        ),
        calls_per_second=RATE,
        lanes=lanes,
    )


def _x(at_s: float) -> float:
    return round(LEFT + (at_s + BEFORE_S) / (BEFORE_S + AFTER_S) * (RIGHT - LEFT), 1)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" class="{kind}">{text}</text>'


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _draw_lane(lane: Lane, top: float) -> Iterator[str]:
    outage = percentile(lane.outages_s, 50)
    gaps = [
        (after - before, before) for before, after in zip(lane.replies_s, lane.replies_s[1:], strict=False)
    ]
    # The gap that the kill made; an ordinary one before it may be as long as ours.
    gap, began = max(each for each in gaps if each[0] + each[1] > 0)
    yield _text(LEFT, top - 12, lane.name, "name")
    yield _text(
        RIGHT,
        top - 12,
        f"without a reply for {_duration(outage)} (median of {len(lane.outages_s)}, "
        f"longest {_duration(max(lane.outages_s))})",
        "figure",
        "end",
    )
    width = round(_x(began + gap) - _x(began), 1)
    yield f'<path d="M{_x(0)} {top - 6}v{TICK + 12}" class="kill"/>'
    yield f'<rect x="{_x(began)}" y="{top}" width="{width}" height="{TICK}" class="gap"/>'
    ticks = " ".join(f"M{_x(at)} {top}v{TICK}" for at in lane.replies_s)
    yield f'<path d="{ticks}" class="reply"/>'


def draw(measured: Measured) -> str:
    """The picture as SVG. It follows the reader's light or dark mode."""
    bottom = LANE_TOP + LANE_STEP * (len(measured.lanes) - 1) + TICK
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            'aria-label="Replies that a client gets around the kill of the active node">'
        ),
        "<style>",
        "text{font:14px system-ui,sans-serif;fill:#1f2328}.name{font-weight:600}",
        ".small{font-size:12px;fill:#59636e}",
        ".reply{stroke:#1a7f37;stroke-width:1.3}.gap{fill:#cf222e;opacity:.22}",
        ".kill{stroke:#cf222e;stroke-width:1.5;stroke-dasharray:4 3}.axis{stroke:#59636e}",
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}.reply{stroke:#3fb950}",
        ".gap{fill:#f85149;opacity:.35}.kill{stroke:#f85149}.axis{stroke:#9198a1}}",
        "</style>",
        _text(
            LEFT,
            20,
            f"each green line is a reply to the client, {measured.calls_per_second:.0f} calls per second; "
            "dashed: kill -9 of the active node",
            "small",
        ),
    ]
    for number, lane in enumerate(measured.lanes):
        lines += _draw_lane(lane, LANE_TOP + LANE_STEP * number)
    lines.append(f'<path d="M{LEFT} {bottom + 14}H{RIGHT}" class="axis"/>')
    lines += [
        _text(_x(second), bottom + 32, f"{second} s", "small", "middle" if second < AFTER_S else "end")
        for second in range(int(AFTER_S) + 1)
    ]
    lines += [
        _text(LEFT, HEIGHT - 10, f"{measured.command}, {measured.made_at}; {measured.machine}", "small"),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Measure if asked, draw, write."""
    parser = argparse.ArgumentParser(
        prog="failover.picture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=0, help="measure so many of each first")
    asked = parser.parse_args(arguments)
    if asked.trials > 0:
        DATA.write_bytes(msgspec.json.format(msgspec.json.encode(measure(asked.trials)), indent=1) + b"\n")
    PICTURE.write_text(draw(msgspec.json.decode(DATA.read_bytes(), type=Measured)), "utf-8")
    print(f"wrote {PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
