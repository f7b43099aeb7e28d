"""A pair with keys on hosts of its own, set up by the commands of docs/security.md as they stand there.

    PYTHONPATH=chaos-tests .venv/bin/python -m chaos.keyed    (root) makes each attack, prints what happened

The machines of the page are network namespaces; only their addresses differ. They share the folder of keys.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from bstar_testing.nodes import COMMAND
from bstar_testing.processes import LIMIT_S, Process, environment, wait_until
from chaos.attacks import ATTACKS, Target
from chaos.netns import what_is_missing
from chaos.network import Network

T = TypeVar("T")

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
# The page's machines, and the hosts that stand for them.
MACHINES = {"10.0.0.1": "primary", "10.0.0.2": "backup", "10.0.0.3": "arbiter"}
HOSTS = (*MACHINES.values(), "clients", "attacker")


def commands() -> dict[str, list[str]]:
    """The blocks of shell on the page: the pair, a worker and a client, an operator, an arbiter."""
    found = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    blocks = [block.replace("\\\n", " ").splitlines() for block in found]
    return dict(zip(("pair", "clients", "operator", "arbiter"), blocks, strict=False))


def parse(lines: list[str]) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Each command of bstar with its variables: those exported before it, and its own.

    What a person sleeps for is waited for here.
    """
    exported: dict[str, str] = {}
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[:1] == ["export"]:
            exported |= dict(word.split("=", 1) for word in words[1:])
            continue
        own = dict(exported)
        while words and re.match(r"[A-Z_]+=", words[0]):
            own |= dict([words.pop(0).split("=", 1)])
        if words and words[0] != "sleep":
            yield words, own


class Place:
    """Runs the page's commands in ``folder``, on the hosts of ``network``."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self._network = network

    def _moved(self, text: str) -> str:
        for address, host in MACHINES.items():
            text = text.replace(address, self._network[host].address)
        return text

    def _argv(self, words: list[str]) -> list[str]:
        assert words[0] == "bstar", words
        moved = [self._moved(word) for word in words[1:] if word != "&"]
        return ["sh", "-c", 'cd "$0" && exec "$@"', str(self.folder), *COMMAND, *moved]

    def run(
        self, words: list[str], variables: Mapping[str, str], *, host: str = "clients"
    ) -> tuple[int, str]:
        """Run a command to its end: its status, and what it says."""
        done = subprocess.run(
            self._network[host].command(self._argv(words)),
            env=environment() | {name: self._moved(text) for name, text in variables.items()},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def process(self, name: str, words: list[str], variables: Mapping[str, str], *, host: str) -> Process:
        """A command that goes on."""
        moved = {key: self._moved(text) for key, text in variables.items()}
        return Process(
            name, self._argv(words), folder=self.folder, host=self._network[host], environment=moved
        )

    def address(self, machine: str, port: int) -> str:
        """An endpoint of the page, where it is here."""
        return f"tcp://{self._moved(machine)}:{port}"


@contextmanager
def keyed_pair(folder: Path) -> Iterator[Target]:
    """Follow the page from an empty folder: a pair, an arbiter, a worker, and a client that was answered."""
    blocks = commands()
    with Network(HOSTS) as network, ExitStack() as resources:
        place = Place(folder, network)

        def launch(name: str, words: list[str], variables: Mapping[str, str], host: str) -> Process:
            process = place.process(name, words, variables, host=host)
            resources.callback(process.close)
            process.launch()
            return process

        # The nodes ask an arbiter, too; the page says so after the five commands.
        asks = {"BSTAR_ENDPOINTS__ARBITER": place.address("10.0.0.3", 5010)}
        nodes: dict[str, Process] = {}
        pair = list(parse(blocks["pair"]))
        assert len(pair) == 5, "the page promises five commands"
        for words, _ in pair:
            if words[1] == "keys":
                _ends_well(place.run(words, {}))
        (make_key, _), (arbitrate, _) = parse(blocks["arbiter"])
        _ends_well(place.run(make_key, {}))
        arbiter = launch("arbiter", arbitrate, {}, "arbiter")
        for words, _ in pair:
            if words[1] == "serve":
                role = next(word.removeprefix("role=") for word in words if word.startswith("role="))
                nodes[role] = launch(role, words, asks, role)
        (work, workers), (call, callers) = parse(blocks["clients"])
        launch("worker", work, workers, "clients")
        _ends_well(place.run(call, callers))
        (make_operator, _), (show, operators) = parse(blocks["operator"])
        _ends_well(place.run(make_operator, {}))
        wait_until(lambda: place.run(show, operators)[0] == 0, "the operator sees a pair that is well")

        def run_at(host: str, call: Callable[[], T], /) -> T:
            return network[host].namespace.inside(call)

        yield Target(
            endpoints=(place.address("10.0.0.1", 5001), place.address("10.0.0.2", 5001)),
            state_endpoint=place.address("10.0.0.1", 5003),
            arbiter_endpoint=place.address("10.0.0.3", 5010),
            keys=folder / "keys",
            nodes=nodes,
            arbiter=arbiter,
            run_at=run_at,
        )


def _ends_well(done: tuple[int, str]) -> None:
    assert done[0] == 0, done[1]


def report() -> int:
    """Make each attack and print the table; 0 if none got anywhere."""
    missing = what_is_missing()
    if missing is not None:
        sys.stderr.write(f"{missing}\n")
        return 2
    with tempfile.TemporaryDirectory() as folder, keyed_pair(Path(folder)) as target:
        sys.stdout.write("| who | tries to | what happened |\n|---|---|---|\n")
        for attack in ATTACKS:
            sys.stdout.write(f"| {attack.who} | {attack.tries_to} | {attack.make(target)} |\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(report())
