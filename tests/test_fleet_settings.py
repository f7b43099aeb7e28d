"""A fleet's configuration: what is read, what is refused in which words, and where commands find it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bstar.errors import ConfigurationError
from bstar.fleet import Fleet, Pair
from bstar.security.keys import new_key, write_key
from bstar.settings import load_fleet, sample_client_configuration
from bstar_cli.main import main
from bstar_cli.options import fleet_of
from bstar_client import App, HAClient, Request
from bstar_client.arguments.environment import DEFAULT_ENDPOINTS

EAST = ("tcp://east1:5001", "tcp://east2:5001")
WEST = ("tcp://west1:5001", "tcp://west2:5001")
FLEET = f"""\
pairs:
  east: [{EAST[0]}, '{EAST[1]}']
  west: [{", ".join(WEST)}]
pins: {{billing: east, 'w.*': west}}
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("BSTAR_"):
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.yaml"
    path.write_text(FLEET)
    return path


def test_pairs_and_pins_are_read(file: Path) -> None:
    fleet = load_fleet(file)
    assert fleet.pairs == (Pair(EAST, "east"), Pair(WEST, "west"))
    assert fleet.pins == {"billing": "east", "w.*": "west"}


def test_pairs_may_have_no_names(file: Path) -> None:
    file.write_text(f"pairs: [[{', '.join(EAST)}], [{WEST[0]}]]\n")
    assert load_fleet(file).pairs == (Pair(EAST), Pair(WEST[:1]))


def test_the_sample_is_the_pair_of_the_other_samples(file: Path) -> None:
    file.write_text(sample_client_configuration())
    fleet = load_fleet(file)
    assert fleet.pairs == (Pair(tuple(DEFAULT_ENDPOINTS.split(",")), "bstar"),)
    assert fleet.pins == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["pairs", "is missing"]),
        ("pairs:\n", ["client.yaml:1", "is missing"]),
        ("pairs: 5\n", ["client.yaml:1", "not 5"]),
        ("pairs: {}\n", ["client.yaml: there is no pair"]),
        ("pairs: {a: []}\n", ["client.yaml: endpoints must be one or more", "'a'"]),
        ("pairs:\n  a: tcp://x:1\n", ["client.yaml:2: pairs.a", "no list of endpoints"]),
        ("pairs:\n  a: [x:1]\n", ["client.yaml:2: pairs.a", "not an endpoint"]),
        ("pairs:\n  a: [5]\n", ["client.yaml:2: pairs.a", "not an endpoint"]),
        ("pairs:\n  a: ['tcp://*:1']\n", ["client.yaml:2: pairs.a", "cannot be connected to"]),
        ("pairs:\n  a: [tcp://x:1]\n  a: [tcp://y:1]\n", ["client.yaml:3: pairs.a", "second time"]),
        ("pairs:\n  a: [tcp://x:1]\n  b: [tcp://x:1]\n", ["client.yaml:", "'tcp://x:1'", "stands twice"]),
        ("pairs:\n  a b: [tcp://x:1]\n", ["client.yaml:", "'a b'"]),
        ("pairs: {a: [tcp://x:1]}\npin: {}\n", ["client.yaml:2: pin: unknown key"]),
        ("pairs: {a: [tcp://x:1]}\npins: [a]\n", ["client.yaml:2: pins"]),
        ("pairs: {a: [tcp://x:1]}\npins:\n  s: 5\n", ["client.yaml:3: pins.s", "5 is no pair's name"]),
        ("pairs: {a: [tcp://x:1]}\npins:\n  s: b\n", ["client.yaml:", "'b'", "there is: a"]),
        ("role: primary\n", ["client.yaml is a node's configuration", "--endpoints"]),
        ("pairs: [", ["client.yaml", "is no YAML"]),
    ],
)
def test_what_is_wrong_is_told_with_its_place(file: Path, text: str, words: list[str]) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_fleet(file)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_all_that_is_wrong_is_told_at_once(file: Path) -> None:
    file.write_text("pairs:\n  a: [x]\n  b: y\npins: {s: 1}\nelse: 1\n")
    with pytest.raises(ConfigurationError, match="4 problems"):
        load_fleet(file)


# --- where commands find it ---------------------------------------------------------------------------------


def test_commands_take_the_file_from_the_option_then_the_variable(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fleet_of(None, file).pairs == load_fleet(file).pairs
    monkeypatch.setenv("BSTAR_CLIENT_CONFIG", str(file))
    assert fleet_of(None, None).pairs == load_fleet(file).pairs
    assert fleet_of("tcp://x:1", None).endpoints == ("tcp://x:1",)


def test_programs_that_name_no_endpoints_take_what_commands_take(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HAClient() as client:
        assert client.fleet.endpoints == tuple(DEFAULT_ENDPOINTS.split(","))
    monkeypatch.setenv("BSTAR_ENDPOINTS", ",".join(EAST))
    with HAClient() as client, HAClient(WEST[0]) as other:
        assert (client.endpoints, other.endpoints) == (EAST, WEST[:1])
    monkeypatch.delenv("BSTAR_ENDPOINTS")
    monkeypatch.setenv("BSTAR_CLIENT_CONFIG", str(file))
    with HAClient() as client:
        assert client.fleet.pairs == load_fleet(file).pairs


def test_the_key_comes_from_where_the_endpoints_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, public = write_key(new_key("shop"), tmp_path)
    monkeypatch.setenv("BSTAR_KEY", str(secret))
    monkeypatch.setenv("BSTAR_SERVER_KEYS", str(public))
    with HAClient() as client, HAClient(",".join(EAST)) as other:
        assert "key shop" in repr(client)
        assert "key" not in repr(other)


def test_an_app_reads_the_variables_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    app = App()

    @app.service("echo")
    def echo(request: Request) -> bytes:
        return request.body

    monkeypatch.setenv("BSTAR_ENDPOINTS", "nonsense")
    with pytest.raises(ConfigurationError, match=r"^BSTAR_ENDPOINTS: "):
        app.run()


def test_semicolons_part_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{', '.join(EAST)}; {WEST[0]}"
    wanted = (Pair(EAST), Pair(WEST[:1]))
    assert fleet_of(text, None).pairs == wanted
    monkeypatch.setenv("BSTAR_ENDPOINTS", text)
    assert fleet_of(None, None).pairs == wanted
    monkeypatch.delenv("BSTAR_ENDPOINTS")
    assert fleet_of(None, None).endpoints == tuple(DEFAULT_ENDPOINTS.split(","))


def test_two_sources_contradict_each_other(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="--endpoints and --config"):
        fleet_of("tcp://x:1", file)
    monkeypatch.setenv("BSTAR_CLIENT_CONFIG", str(file))
    monkeypatch.setenv("BSTAR_ENDPOINTS", "tcp://x:1")
    with pytest.raises(ConfigurationError, match="BSTAR_CLIENT_CONFIG and BSTAR_ENDPOINTS"):
        fleet_of(None, None)


@pytest.mark.parametrize("text", ["", ";", "tcp://x:1;", "tcp://x:1;tcp://x:1", "x", "tcp://x:1,tcp://x:1"])
def test_wrong_endpoints_name_the_option(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--endpoints"):
        fleet_of(text, None)


def test_the_sample_can_be_printed_and_checked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample-config", "--role", "client"]) == 0
    file.write_text(capsys.readouterr().out)
    assert main(["check-config", "--client", str(file)]) == 0
    assert "right, 1 pair\n" in capsys.readouterr().out
    file.write_text(FLEET)
    assert main(["check-config", "--client", str(file)]) == 0
    assert "right, 2 pairs" in capsys.readouterr().out
    file.write_text("pairs: {}")
    assert main(["check-config", "--client", str(file)]) == 2
    assert "no pair" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["call", "x"], ["load"], ["worker", "--service", "x"]])
def test_every_command_of_clients_takes_a_configuration(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--config", str(tmp_path / "missing.yaml")]) == 2
    assert "missing.yaml: cannot be read" in capsys.readouterr().err


def test_a_fleet_is_what_a_file_says(file: Path) -> None:
    made = Fleet.of({"east": EAST, "west": WEST}, {"billing": "east", "w.*": "west"})
    services = [f"service-{number}" for number in range(50)] + ["billing", "w.1"]
    assert [made.pair_of(each) for each in services] == [load_fleet(file).pair_of(each) for each in services]
