"""A report's content that never was measured: twenty minutes of a pair that loses its active node twice."""

import math
import random

from bstar_pipeline import sketch
from bstar_pipeline.report.content import (
    Capacity,
    Client,
    Content,
    Finding,
    Heat,
    Hit,
    Incident,
    Interval,
    Objective,
    Promise,
    Quality,
    Rate,
    Run,
    Shown,
    Verdicts,
)

SECOND = 1_000_000
START = 1_795_248_000 * SECOND
"""2026-11-21 08:00:00 UTC."""
STEP_US = 5 * SECOND
STEPS = 240
NASTY = "<script>window.broken = 1</script>"
"""A service that somebody named to do harm."""
ROW = 14
ROWS = range(28, 52)


def at(seconds: float) -> int:
    return START + round(seconds * SECOND)


def _interval(node: str, state: str, since: float, until: float, epoch: int, text: str) -> Interval:
    return Interval(node, state, state == "ACTIVE", epoch, at(since), at(until), "PEER_ACTIVE", text)


def _intervals() -> list[Interval]:
    return [
        _interval("primary", "PRIMARY", 0, 0.4, 0, "starts as primary"),
        _interval("backup", "BACKUP", 0.1, 0.6, 0, "starts as backup"),
        _interval("primary", "ACTIVE", 0.4, 402.25, 1, "the peer is a backup that waits for us"),
        _interval("backup", "PASSIVE", 0.6, 402.27, 1, "the peer serves"),
        _interval("backup", "ACTIVE", 402.27, 811.0, 2, "the peer is gone, and a client asked: <b>vote</b>"),
        _interval("primary", "PRIMARY", 431.0, 431.3, 1, "starts as primary"),
        _interval("primary", "PASSIVE", 431.3, 811.31, 2, "the peer serves"),
        Interval("backup", "ACTIVE", False, 2, at(811.0), at(812.4), "", "the process was away"),
        _interval("backup", "PASSIVE", 812.4, 1200, 3, "woke up and found a higher epoch"),
        _interval("primary", "ACTIVE", 811.31, 1200, 3, "the peer is silent, and a client asked"),
    ]


def _incident(
    kind: str, node: str, successor: str, began: float, detected: float, taken: float, **rest: object
) -> Incident:
    values: dict[str, object] = {
        "pair": "orders",
        "kind": kind,
        "node": node,
        "successor": successor,
        "epoch": 2,
        "began_at_us": at(began),
        "began_error_us": 1_200,
        "detected_at_us": at(began + detected),
        "taken_over_at_us": at(began + taken),
        "recovered_at_us": at(began + 29),
        "detection_us": round(detected * SECOND),
        "takeover_us": round(taken * SECOND),
        "outage_us": round(taken * SECOND) + 4_000,
        "outage_at_us": None,
        "retried": 41,
        "refused": 0,
        "unknown": 0,
        "affected": 41,
        "cause": "",
    }
    return Incident(**(values | rest))  # type: ignore[arg-type]


def _heat(service: str, rng: random.Random, scale: float) -> Heat:
    cells: list[tuple[int, int, float]] = []
    lines = []
    for step in range(STEPS):
        away = step in (80, 162)
        shift = 1.6 * math.sin(step / 30)
        for row in range(len(ROWS)):
            weight = round(600 * scale * math.exp(-(((row - 7 - shift) / 1.7) ** 2)) * rng.uniform(0.8, 1.2))
            if away and row > 16:
                weight = rng.randint(3, 20)
            elif rng.random() < 0.02 and row < 20:
                weight += 1
            if weight:
                cells.append((step, row, float(weight)))
        middle = (ROWS[0] + 7 + shift) * ROW
        lines.append(
            (step, sketch.value_of(round(middle)), sketch.value_of(round(middle + (150 if away else 45))))
        )
    return Heat(service, cells, lines)


def report_content(
    *, services: tuple[str, ...] = ("echo", "thumbnail", NASTY), is_broken: bool = False
) -> Content:
    """What ``collect`` might have brought; ``is_broken``: the audit found violations."""
    rng = random.Random(7)
    rates = []
    for step in range(STEPS):
        share = {80: 0.55, 162: 0.7}.get(step, 1.0)
        per_s = 420 + 60 * math.sin(step / 30) + rng.uniform(-15, 15)
        rates.append(Rate(at(step * 5), per_s * 5 * share, 14.0 if step == 162 else 0.0))
    promise = Promise(0.999, 250_000, 0.99, 672_000.0, 0.04, 0.21, True)
    minutes = [(at(60 * minute), 0.0 if minute != 13 else 3.4) for minute in range(20)]
    objectives = [
        Objective(
            "orders",
            name,
            "requests",
            504_000 / 4**n,
            14.0 if n == 0 else 0.0,
            460.0 / 4**n,
            1_900.0,
            4_100.0,
            11_800.0,
            0.03,
            3.4 if n == 0 else 0.0,
            at(13 * 60),
            2 if n == 0 else 0,
            0,
            promise,
            minutes,
        )
        for n, name in enumerate(services)
    ]
    hours = [(START - (6 - hour) * 3600 * SECOND, 0.55 + hour * 0.02) for hour in range(7)]
    capacity = [
        Capacity(name, 4, 0.67, 0.81, 105.0, 18, 0.05, at(86_400 * 6) if n == 0 else None, hours)
        for n, name in enumerate(services)
    ]
    violated = [
        Finding(
            "orders",
            "lost",
            "violated",
            "5f" * 16,
            881_202,
            services[0],
            "primary",
            at(402.2),
            None,
            1,
            "accepted by primary, and no outcome anywhere",
        ),
        Finding(
            "orders",
            "both-active",
            "violated",
            "",
            None,
            "",
            "primary",
            at(811.31),
            40_000,
            1,
            "primary and backup served at once",
        ),
    ]
    unproven = [
        Finding(
            "orders",
            "crossed",
            "unproven",
            "",
            None,
            services[-1],
            "",
            None,
            None,
            40,
            "a worker kept no journal",
        )
    ]
    return Content(
        pair="orders",
        from_us=START,
        until_us=at(1200),
        step_us=STEP_US,
        requests=sum(rate.answered + rate.not_answered for rate in rates),
        errors=14.0,
        verdicts=[
            Verdicts("both-active", int(is_broken), 0, 0),
            Verdicts("crossed", 0, 0, 40),
            Verdicts("executed-twice", 0, 25, 0),
            Verdicts("lost", int(is_broken), 0, 0),
        ],
        findings=Shown([*(violated if is_broken else []), *unproven]),
        intervals=Shown(_intervals()),
        rates=rates,
        incidents=Shown(
            [
                _incident(
                    "crash",
                    "primary",
                    "backup",
                    402.25,
                    0.012,
                    0.02,
                    cause="killed: its journal ends without a word; a connection was refused 12 ms later",
                ),
                _incident(
                    "pause",
                    "backup",
                    "primary",
                    811.0,
                    0.3,
                    0.31,
                    unknown=14,
                    cause="the process was away for 1.4 s (stall), longer than the failover timeout",
                ),
            ]
        ),
        hits=[Hit(services[0], 41, 2, 14, 3)],
        edges_us=[sketch.GAMMA ** (row * ROW - 1) for row in [*ROWS, ROWS[-1] + 1]],
        heats=[_heat("", rng, 1.3), *(_heat(name, rng, 1 / 4**n) for n, name in enumerate(services))],
        p99_us=11_800.0,
        objectives=Shown(objectives),
        capacity=Shown(capacity, 12),
        clients=Shown(
            [
                Client("a3" * 16, "checkout-7", 311_000.0, 0.0, 12, 0, 0.61, 300.0, 9_100.0, True, False),
                Client("mdp-00e1<i>", "", 90_000.0, 14.0, 54, 3, 0.18, 120.0, None, False, True),
            ]
        ),
        runs=Shown(
            [
                Run(
                    "primary",
                    "broker",
                    "host-a",
                    "0.1.0",
                    "9f8e7d6c5b4a3f2e",
                    "",
                    at(0),
                    at(402.25),
                    False,
                    171_003,
                    0,
                    0,
                ),
                Run(
                    "backup",
                    "broker",
                    "host-b",
                    "0.1.0",
                    "9f8e7d6c5b4a3f2e",
                    "",
                    at(0),
                    at(1200),
                    True,
                    174_220,
                    2,
                    0,
                ),
                Run(
                    "w1", "worker", "host-c", "0.1.0", "", services[-1], at(1), at(1200), True, 250_000, 0, 31
                ),
            ]
        ),
        quality=Quality(
            files=[("whole", 41), ("truncated", 1), ("open", 1)],
            rejected=[("unreadable", 1)],
            samples=[
                (
                    "/journal/orders.primary.20261121T080000Z.0a1b2c3d.0003.ndjson.gz",
                    "unreadable",
                    '{"v":1,"pair":"or',
                )
            ],
            lines=595_226,
            duplicates=0,
            missing=2,
            dropped=31,
            is_sampled=False,
        ),
    )
