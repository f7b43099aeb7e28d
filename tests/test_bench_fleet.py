"""``bstar bench`` with several pairs: which are measured, what is told of each, and a run with two."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from bstar.errors import ConfigurationError
from bstar.fleet import Fleet, Pair
from bstar_cli.bench.command import _own_services
from bstar_cli.bench.plan import Case, Side, Tally
from bstar_cli.bench.report import Asked, Document, as_csv, as_table
from bstar_cli.bench.results import Result, row_of
from bstar_testing.nodes import COMMAND
from support.brokers import broker_pair
from support.waiting import LIMIT_S

EAST = Pair(("tcp://e0:1", "tcp://e1:1"), "east")
WEST = Pair(("tcp://w0:1", "tcp://w1:1"), "west")
NORTH = Pair(("tcp://n0:1",), "north")
PINS = {"e.*": "east", "w.*": "west"}
CASE = Case(16, 100)


def side(*services: str) -> Side:
    return Side("A", [EAST, WEST, NORTH], "native", "sync", list(services), pins=PINS)


def test_the_pairs_that_are_measured_are_those_of_the_services() -> None:
    assert list(side("w.1", "e.1", "w.2").pairs_used) == ["east", "west"]
    assert list(side("w.1").pairs_used) == ["west"]


@pytest.mark.parametrize("pairs", [1, 2, 7])
def test_without_services_of_the_callers_each_pair_gets_one(pairs: int) -> None:
    fleet = Fleet(Pair((f"tcp://node{number}:1",), f"pair{number}") for number in range(pairs))
    services = _own_services(fleet)
    assert [fleet.place(service.encode()) for service in services] == list(range(pairs))


def test_where_pins_leave_a_pair_nothing_that_is_told() -> None:
    with pytest.raises(ConfigurationError, match=r"belongs to west.*pins"):
        _own_services(Fleet([EAST, WEST], pins={"*": "east"}))


def document() -> Document:
    one, two = Tally(1.0, {10: 30}, {}), Tally(1.0, {20: 10}, {"BusyError": 1})
    asked = side("e.1", "w.1")
    rows = [
        row_of(asked, CASE, [Result([one, two], 0.000_8)]),
        row_of(asked, CASE, [Result([one], 0.000_3)], "east"),
        row_of(asked, CASE, [Result([two], 0.000_5)], "west"),
    ]
    return Document(
        load=Asked(2, "map", None, 1.0, None, 1, 0),
        sides=[asked],
        rows=rows,
        ratios=[],
        cpu_unknown={},
        is_complete=True,
    )


def test_csv_has_a_line_for_the_whole_and_one_for_each_pair() -> None:
    whole, east, west = csv.DictReader(io.StringIO(as_csv(document())))
    assert (whole["pair"], whole["answered"], whole["failed"], whole["cpu_us"]) == ("", "40", "1", "20.0")
    assert (east["pair"], east["endpoints"], east["cpu_us"]) == ("east", "tcp://e0:1 tcp://e1:1", "10.0")
    assert (west["pair"], west["answered"], west["failed"], west["cpu_us"]) == ("west", "10", "1", "50.0")


def test_the_table_has_a_row_for_each_pair_below_their_sum() -> None:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as shown:
        console.print(as_table(document()))
    lines = [line.split() for line in shown.get().splitlines()[1:]]
    assert [(line[0], line[3], line[-2]) for line in lines] == [
        ("A", "40", "20.0"),
        ("east", "30", "10.0"),
        ("west", "10", "50.0"),
    ]


@pytest.mark.loopback
def test_two_pairs_are_measured_at_once_and_one_of_them_against_both(tmp_path: Path) -> None:
    with broker_pair(tmp_path / "east") as east, broker_pair(tmp_path / "west") as west:
        config = tmp_path / "client.yaml"
        nodes = {"east": [each.endpoint for each in east], "west": [each.endpoint for each in west]}
        config.write_text(json.dumps({"pairs": nodes}))
        done = subprocess.run(
            [
                *(*COMMAND, "bench", "--echo", "1", "--config", str(config), "-n", "60", "--window", "8"),
                *("--against", ",".join(nodes["west"]), "--rounds", "2", "--warm-up", "0", "--json"),
            ],
            capture_output=True,
            text=True,
            timeout=3 * LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        rows = [(row["side"], row["pair"], row["answered"]) for row in told["rows"]]
        assert rows == [("A", None, 120), ("A", "east", 60), ("A", "west", 60), ("B", None, 120)]
        assert all(row["cpu_us"] > 0 for row in told["rows"])
        assert told["load"]["clients"] == 2, "one for each pair"
        assert len(told["ratios"]) == 1
        assert told["ratios"][0]["cpu_us"] > 0
        for pair in nodes:
            assert f"A {pair}: {nodes[pair][0]}" in done.stderr

        done = subprocess.run(
            [*COMMAND, "bench", "nobody", "--config", str(config), "--timeout", "0.5"],
            capture_output=True,
            text=True,
            timeout=3 * LIMIT_S,
            check=False,
        )
        # 4 on a busy machine: the call ended before the node's word that nobody has executed it.
        assert done.returncode in (3, 4), done.stderr
        assert "nobody" in done.stderr
