"""Programs and commands of docs/ do what is said there: each page's are run as they stand, on free ports."""

from __future__ import annotations

import logging
import os
import re
import runpy
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from bstar.settings.fields import FIELDS
from bstar.wire import emq
from bstar_client import App, DeclinedError, HAClient, HandlerError, LazyPirateClient, Request
from bstar_testing import LoopbackHost, fake
from support.brokers import Broker, BrokerPair, broker_pair
from support.emq_router import PublishedRouter
from support.stored_pair import stored_pair

ROOT = Path(__file__).parents[1]
LIMIT_S = 120.0

pytestmark = pytest.mark.loopback


def blocks(page: str, language: str) -> list[str]:
    """The blocks of code on a page of docs/."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


def programs(page: str) -> dict[str, str]:
    """The whole programs on it, by the name in their first line."""
    named = [re.match(r"# (\w+\.py)\n", block) for block in blocks(page, "python")]
    return {match[1]: match.string for match in named if match is not None}


def write(folder: Path, page: str, nodes: Sequence[Broker], names: set[str]) -> None:
    """The page's programs into files, with the endpoints of these nodes."""
    found = programs(page)
    assert found.keys() == names
    for name, text in found.items():
        for shipped, node in zip(("5001", "5002"), nodes, strict=True):
            assert shipped in text or "tcp://" not in text
            text = text.replace(f"tcp://127.0.0.1:{shipped}", node.endpoint)  # noqa: PLW2901
        (folder / name).write_text(text)


def run(folder: Path, name: str, given: str = "") -> list[str]:
    """What a program prints that reads ``given``."""
    command = [sys.executable, name]
    done = subprocess.run(
        command, cwd=folder, input=given, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def shell(folder: Path, *typed: str) -> str:
    """What these lines print in a terminal that has the command."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", "".join(typed)],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_tests(folder: Path, *names: str) -> str:
    """What pytest prints about tests that pass. What they start is forked, as for the tests here."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "support.zygote", *names],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def running(folder: Path, *command: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, *command], cwd=folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def test_one_answer_per_key(tmp_path: Path) -> None:
    """docs/guarantees.md: two workers of each kind, and a client that asks three times with one key."""
    with broker_pair(tmp_path / "pair") as nodes, ExitStack() as stack:
        write(tmp_path, "guarantees.md", nodes, {"keeping.py", "booking.py", "buying.py"})
        for name in ("keeping.py", "booking.py") * 2:
            stack.enter_context(running(tmp_path, name))
        assert run(tmp_path, "buying.py") == ["b'order 1'", "b'1'"] * 3
        with closing(sqlite3.connect(tmp_path / "orders.db")) as database:
            assert database.execute("SELECT what FROM orders").fetchall() == [(b"3 apples",)]


def test_clients_and_workers(tmp_path: Path) -> None:
    """docs/clients.md: all its programs."""
    with broker_pair(tmp_path / "pair") as nodes, ExitStack() as stack:
        names = {"ask.py", "work.py", "prices.py", "shop.py", "aio.py", "film.py", "clear.py"}
        write(tmp_path, "clients.md", nodes, names)
        stack.enter_context(running(tmp_path, "work.py"))
        *lines, last = run(tmp_path, "ask.py")
        assert lines == [
            "b'HELLO'",
            "4000",
            *("0 Reply", "1 Reply", "2 Reply", "3 CallFailed"),
            "b'LATER'",
            "[b'0', b'1', b'2', b'done']",
        ]
        # On a busy machine the call ends before the node's word that nobody has executed it.
        assert last.removesuffix("False").removesuffix("True") == "CallTimeoutError may have been executed: "
        assert run(tmp_path, "aio.py") == ["b'abab'", "1000", "0 b'aa'", "1 b'bb'"]
        assert run(tmp_path, "prices.py") == ["1250", "[1250, 1250, 1250]"]
        *values, result = run(tmp_path, "film.py")
        assert (values[-1], result) == ("39 of 40: drawing", "b'done'")
        [outcome] = run(tmp_path, "clear.py")
        assert outcome.endswith(" b'HELLO'")
        stack.enter_context(running(tmp_path, "-m", "bstar_cli", "run", "shop:app", "--processes", "2"))
        client = stack.enter_context(HAClient([node.endpoint for node in nodes], timeout=LIMIT_S))
        assert client.request("hello", b"you").body == b"HELLO YOU"
        assert [client.request("ask", b"apple").body for _ in range(2)] == [b"1", b"2"]


class Sentry(ModuleType):
    """Stands for the package sentry_sdk, which need not be installed."""

    def init(self, *, ignore_errors: list[type[Exception]]) -> None:
        self.reported: list[BaseException] = []
        self._ignored = tuple(ignore_errors)

    def capture_exception(self) -> None:
        error = sys.exception()
        assert error is not None
        if not isinstance(error, self._ignored):
            self.reported.append(error)


class Clock:
    """Stands for the module ``time``."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_recipes_around_handlers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """docs/around.md: all four around one service. Sentry is a stand-in."""
    found = programs("around.md")
    assert found.keys() == {"logs.py", "reports.py", "rights.py", "slow.py"}
    assert all(len(list(filter(None, text.splitlines()))) <= 10 for text in found.values())
    sentry = Sentry("sentry_sdk")
    monkeypatch.setitem(sys.modules, "sentry_sdk", sentry)
    monkeypatch.setenv("SHOP_TOKEN", "s3cret")
    app = App()
    names = {"logs.py": "log", "reports.py": "report", "rights.py": "admit", "slow.py": "warn"}
    clock = Clock()
    for file, name in names.items():
        (tmp_path / file).write_text(found[file])
        around = app.around(runpy.run_path(str(tmp_path / file))[name])
        if name == "warn":
            monkeypatch.setitem(around.__globals__, "time", clock)

    @app.service("work")
    def work(request: Request) -> bytes:
        clock.now += float(request.body)
        return b"done"

    @app.service("parts")
    def two(request: Request) -> Iterator[bytes]:
        yield b"first"
        yield b"last"

    caplog.set_level(logging.INFO)
    admitted = {"token": "s3cret"}
    with fake(app) as client:
        assert client.request("work", b"0", headers=admitted).body == b"done"
        assert re.search(r"work [0-9a-f]{48} begins", caplog.text)
        assert " ends" in caplog.text
        assert "took" not in caplog.text
        assert client.request("work", b"7", headers=admitted).body == b"done"
        assert "work took 7.0 s" in caplog.text
        assert [part.body for part in client.stream("parts", b"", headers=admitted)] == [
            b"first",
            b"last",
            b"",
        ]
        for headers in ({}, {"token": "wrøng"}):
            with pytest.raises(DeclinedError, match="not-allowed"):
                client.request("work", b"0", headers=headers)
        with pytest.raises(HandlerError, match="ValueError"):
            client.request("work", b"?", headers=admitted)
    assert [type(error) for error in sentry.reported] == [ValueError]


def test_the_tutorial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/tutorial.md: its shop in two processes, its callers, its tests, and a node that dies."""
    with stored_pair(tmp_path / "pair") as pair:
        monkeypatch.setenv("BSTAR_ENDPOINTS", ",".join(node.endpoint for node in pair.nodes))
        names = {"shop.py", "ask.py", "test_shop.py", "loop.py", "orders.py"}
        write(tmp_path, "tutorial.md", pair.nodes, names)
        with running(tmp_path, "-m", "bstar_cli", "run", "shop:app", "--processes", "2"):
            priced, declined, misfit, later = run(tmp_path, "ask.py")
            assert (priced, declined, later) == ("2500", "no-such-sku [7, 8]", "Price(cents=990)")
            assert misfit.startswith("bad-body: ")
            assert shell(tmp_path, *blocks("tutorial.md", "sh")).endswith('{"cents":1250}')
            with subprocess.Popen(
                [sys.executable, "loop.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
            ) as loop:
                pair.primary.kill()
                out, _ = loop.communicate(timeout=LIMIT_S)
            assert out.startswith("200 prices, none lost")
            pair.primary.start()
            assert run(tmp_path, "orders.py") == ["3 of 7 are on their way"]
        assert "4 passed" in run_tests(tmp_path, "test_shop.py")


def test_who_runs_pytest_in_the_clone_has_installed_what_its_settings_name() -> None:
    """pytest ends at a setting that no plugin knows; the clone has some, for what is beside its files too."""
    for page in ("README.md", "docs/tutorial.md"):
        assert "pip install '.[schema]' pytest pytest-timeout" in (ROOT / page).read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split("[^a-z-]", need)[0] for need in extras["examples"]}
    assert {"httpx", "opentelemetry-sdk", "pytest", "pytest-timeout"} <= names


def test_durable_requests(tmp_path: Path) -> None:
    """docs/durable.md: requests are left, both nodes are killed, and the answers are fetched."""
    with stored_pair(tmp_path / "pair") as pair:
        names = {"later.py", "answers.py", "invoices.py", "titanic.py", "accounts.py"}
        write(tmp_path, "durable.md", pair.nodes, names)
        ids = run(tmp_path, "later.py")
        for node in pair.nodes:
            node.kill()
        pair.start()
        with running(tmp_path, "invoices.py"):
            answers = run(tmp_path, "answers.py", "\n".join(ids))
            assert run(tmp_path, "titanic.py") == ["(b'200', b'invoice for order 5')"]
        assert answers == [f"b'invoice for order {number}'" for number in range(1, 5)]
        [again] = run(tmp_path, "answers.py", ids[0])
        assert again.startswith(f"the store has no durable request {ids[0]}")
        [said] = run(tmp_path, "accounts.py")
        assert said == "['ann has 100', 'bob has 20', 'ann has 70', 'ann has 75', 'bob has 0']"


def test_the_configuration_of_a_store() -> None:
    """docs/durable.md: its keys are those of a node."""
    texts = blocks("durable.md", "yaml")
    assert {f"store.{name}" for text in texts for name in yaml.safe_load(text)["store"]} <= FIELDS.keys()


def test_two_pairs_on_one_machine(tmp_path: Path) -> None:
    """docs/fleet.md: what a newcomer types."""
    shipped = ["5001", "5002", "5003", "5004", "6001", "6002", "6003", "6004", "9401", "9402", "9501", "9502"]
    with LoopbackHost() as host:
        numbers = dict(zip(shipped, map(str, host.ports(len(shipped))), strict=True))

        def moved(text: str) -> str:
            return re.sub(r"(?<=127\.0\.0\.1:)\d{4}\b", lambda match: numbers[match[0]], text)

        (tmp_path / "configs").mkdir()
        for name in ("primary.yaml", "backup.yaml"):
            (tmp_path / "configs" / name).write_text(moved((ROOT / "configs" / name).read_text()))
        # Of a call only a terminal gets a line.
        typed = re.sub(
            r"^bstar call .*$", r"\g<0>; echo", "\n".join(blocks("fleet.md", "sh")), flags=re.MULTILINE
        )
        script = "set -e\ntrap 'kill $(jobs -p)' EXIT\n" + moved(typed)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BSTAR_")}
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    said = done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["pear", "apple"], said
    assert "all 2 pairs are served" in said
    rows = [line.split() for line in lines]
    measured = [row for row in rows if row[:1] in (["A"], ["east"], ["west"]) and "µs" in row]
    assert [row[0] for row in measured] == ["A", "east", "west"], said
    after = lines.index("pear", 2)
    assert "status 3" in lines[after:], said
    assert "NoActiveNodeError" in said
    assert "1 of 2 pairs: west: " in said
    assert "so nothing is known of the pair" in said


def test_plain_majordomo(tmp_path: Path) -> None:
    """docs/plain.md: a plain worker at both nodes, a plain client before and after a node was killed, and the
    guide's loops on our classes.
    """
    with broker_pair(tmp_path / "pair") as nodes:
        names = {"plain_worker.py", "plain_client.py", "guide_worker.py", "guide_client.py"}
        write(tmp_path, "plain.md", nodes, names)
        with running(tmp_path, "plain_worker.py"):
            assert run(tmp_path, "plain_client.py") == ["HELLO", "AGAIN"]
            nodes[0].kill()
            assert run(tmp_path, "plain_client.py") == ["HELLO", "AGAIN"]
        with running(tmp_path, "guide_worker.py"):
            assert run(tmp_path, "guide_client.py") == ["100 replies"]


def test_pirates_at_a_pair(tmp_path: Path) -> None:
    """docs/patterns.md: a worker at each node, and a client before and after a node was killed."""
    page = programs("patterns.md")
    found = {name: page[name] for name in ("pirate_worker.py", "pirate_client.py")}
    doors = "fronts.ppp.clients", "fronts.ppp.workers"
    with BrokerPair(tmp_path / "pair", doors=doors) as pair, ExitStack() as stack:
        pair.start()
        for name, text in found.items():
            for shipped, door in zip(("5011", "5021"), pair.doors(doors[0]), strict=True):
                text = text.replace(f"tcp://127.0.0.1:{shipped}", door)  # noqa: PLW2901
            (tmp_path / name).write_text(text)
        for door in pair.doors(doors[1]):
            stack.enter_context(running(tmp_path, "pirate_worker.py", door))
        for node in pair.nodes:
            node.wait_for_workers(1)
        assert run(tmp_path, "pirate_client.py") == ["b'AHOY'"]
        pair.primary.kill()
        assert run(tmp_path, "pirate_client.py") == ["b'AHOY'"]


def test_servers_without_a_broker(tmp_path: Path) -> None:
    """docs/patterns.md: two servers, and a client of each kind, before and after one of them was killed."""
    page = programs("patterns.md")
    found = {name: page[name] for name in ("lazy.py", "capitals.py", "freelance.py")}
    assert all(len(text.splitlines()) <= 15 for text in found.values())
    with LoopbackHost() as host:
        places = [f"tcp://127.0.0.1:{port}" for port in host.ports(2)]
        for name, text in found.items():
            for shipped, place in zip(("5555", "5556"), places, strict=True):
                text = text.replace(f"tcp://127.0.0.1:{shipped}", place)  # noqa: PLW2901
            (tmp_path / name).write_text(text)
        said = [f"{model} [b'TO', b'BE']" for model in (1, 2, 3)]
        with running(tmp_path, "capitals.py", places[1]):
            with running(tmp_path, "capitals.py", places[0]):
                for place in places:  # it waits for the server
                    with LazyPirateClient(place, timeout=LIMIT_S) as client:
                        client.request(b"?")
                assert run(tmp_path, "freelance.py") == said
                [line] = run(tmp_path, "lazy.py")
                assert re.fullmatch(rf"b'HELLO' from ({'|'.join(map(re.escape, places))})", line)
            assert run(tmp_path, "freelance.py") == said
            assert run(tmp_path, "lazy.py") == [f"b'HELLO' from {places[1]}"]


def test_a_job_of_eventmq(tmp_path: Path) -> None:
    """docs/patterns.md: the client at the second of two routers, and a job manager there."""
    text = programs("patterns.md")["emq_ask.py"]
    assert len(text.splitlines()) <= 15
    (tmp_path / "shop.py").write_text("def price(fruit):\n    return f'{fruit} 3.50'\n")
    with LoopbackHost() as host, PublishedRouter(forwards_results=True) as router:
        for shipped, place in (("47291", host.ports(1)[0]), ("47292", router.frontend.rpartition(":")[2])):
            assert shipped in text
            text = text.replace(shipped, str(place))
        (tmp_path / "emq_ask.py").write_text(text)
        options = ["emq-jobmanager", "--router", router.backend, "--allow", "shop"]
        with subprocess.Popen([sys.executable, "-m", "bstar_cli", *options], cwd=tmp_path) as manager:
            try:
                assert run(tmp_path, "emq_ask.py") == ["apple 3.50"]
                router.wait_until(lambda: router.of(emq.Schedule))
                router.wait_until(lambda: len(router.of(emq.Request)) == 2)
            finally:
                manager.terminate()


def test_a_service_of_the_users_own_is_tested(tmp_path: Path) -> None:
    """docs/testing.md: the programs, and the snippets that open its two parts."""
    found = programs("testing.md")
    assert found.keys() == {"prices.py", "shop.py", "test_prices.py", "test_fake_prices.py", "test_shop.py"}
    for name, text in found.items():
        (tmp_path / name).write_text(text)
    for opening in (text for text in blocks("testing.md", "python") if text.startswith("from bstar_testing")):
        (tmp_path / "first.py").write_text(opening)
        assert run(tmp_path, "first.py") == []
    assert "9 passed" in run_tests(tmp_path, *(path.name for path in tmp_path.glob("test_*")))
