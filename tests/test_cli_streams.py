"""Every command of ``bstar`` beside a full disk, a closed descriptor, a reader that left, and Ctrl-C: a
sentence or silence, an exit code that is documented, and never a traceback.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest
import typer

from bstar_cli import exits
from bstar_cli.main import app, main
from bstar_client import HAClient, Worker
from bstar_testing import LoopbackHost
from bstar_testing.nodes import COMMAND
from support.brokers import lone_broker

LIMIT_S = 60.0
NOWHERE = "tcp://127.0.0.1:1"
ROOT = Path(__file__).parents[1]


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command, groups included, by the words that lead to it."""
    yield path, group
    for name, each in getattr(group, "commands", {}).items():
        yield from commands(each, (*path, name))


TREE = dict(commands(typer.main.get_command(app)))
LEAVES = [path for path, command in TREE.items() if not hasattr(command, "commands")]


def named(paths: Any) -> list[str]:
    return [" ".join(path) or "bstar" for path in paths]


# --- standard output ----------------------------------------------------------------------------------------


def full_disk() -> TextIO:
    return Path("/dev/full").open("w", encoding="utf-8")


def reader_gone() -> TextIO:
    source, sink = os.pipe()
    os.close(source)
    return os.fdopen(sink, "w", encoding="utf-8")


def closed_descriptor() -> TextIO:
    """What a process has in the place of one that was closed when it began."""
    return os.fdopen(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")


BROKEN = [
    (full_disk, exits.OUTPUT_LOST, "bstar: standard output cannot be written: No space left on device\n"),
    (closed_descriptor, exits.OUTPUT_LOST, "bstar: standard output cannot be written: Bad file descriptor\n"),
    (reader_gone, exits.READER_GONE, ""),
]


@pytest.mark.parametrize(("broken", "code", "told"), BROKEN, ids=[each[0].__name__ for each in BROKEN])
@pytest.mark.parametrize("path", TREE, ids=named(TREE))
def test_every_command_ends_in_words_when_its_output_cannot_be_written(
    path: tuple[str, ...],
    broken: Any,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with broken() as out:
        monkeypatch.setattr(sys, "stdout", out)
        ended = main([*path, "--help"])
    assert (ended, capsys.readouterr().err) == (code, told)


@pytest.mark.parametrize(
    ("where", "arguments"),
    [
        (">&-", ("version",)),
        ("> /dev/full", ("version",)),
        ("> /dev/full", ("check-config", str(ROOT / "configs" / "primary.yaml"))),
        ("> /dev/full", ("pipeline", "tables")),
        ("> /dev/full", ("status", "--endpoints", NOWHERE)),
        ("> /dev/full", ("call", "echo", "--endpoints", NOWHERE, "--timeout", "0.1", "--json")),
        ("> /dev/full", ("load", "--endpoints", NOWHERE, "--timeout", "0.1", "--rate", "20")),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
@pytest.mark.loopback
def test_what_a_command_prints_is_missed_by_the_process_too(where: str, arguments: tuple[str, ...]) -> None:
    """The interpreter's own flush at its end finds nothing left that could fail."""
    done = in_shell(arguments, where)
    assert done.returncode == exits.OUTPUT_LOST
    assert re.fullmatch(r"bstar: standard output cannot be written: [A-Z][\w ]+\n", done.stderr.decode())


@pytest.mark.parametrize(
    ("where", "arguments", "code"),
    [
        ("2>&-", ("status", "--endpoints", NOWHERE), exits.NONE_ACTIVE),
        ("2> /dev/full", ("status", "--endpoints", NOWHERE), exits.NONE_ACTIVE),
        ("2> /dev/full", ("call", "echo", "--endpoints", NOWHERE, "--timeout", "0.1"), exits.NOT_EXECUTED),
        ("2> /dev/full", ("worker", "--service", "echo", "nothing:here"), exits.USAGE),
        ("2> /dev/full", ("unheard-of",), exits.USAGE),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
@pytest.mark.loopback
def test_talk_that_cannot_be_written_changes_nothing(
    where: str, arguments: tuple[str, ...], code: int
) -> None:
    assert in_shell(arguments, where).returncode == code


@pytest.mark.loopback
@pytest.mark.parametrize("where", ["2> /dev/full", "2>&-", "> /dev/full 2>&1"])
def test_a_node_serves_although_its_log_cannot_be_written(where: str, tmp_path: Path) -> None:
    command = ("sh", "-c", f'exec "$@" {where}', "sh", *COMMAND)
    with lone_broker(tmp_path, command=command) as node, HAClient(node.endpoint) as client:
        with Worker(node.endpoint, "echo", lambda request: request.frames):
            assert client.request("echo", b"hello").body == b"hello"
        assert node.stop() == exits.OK


def test_a_status_keeps_its_verdict_when_its_reader_leaves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with reader_gone() as out:
        monkeypatch.setattr(sys, "stdout", out)
        ended = main(["status", "--endpoints", NOWHERE])
    assert ended == exits.NONE_ACTIVE
    assert "no node answers" in capsys.readouterr().err


def test_a_load_whose_reader_leaves_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with reader_gone() as out:
            monkeypatch.setattr(sys, "stdout", out)
            assert main(["load", "--endpoints", NOWHERE, "--timeout", "0.1"]) == exits.READER_GONE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.loopback
def test_standard_input_that_is_closed_is_wrong_usage() -> None:
    done = in_shell(("call", "echo", "-", "--endpoints", NOWHERE), "<&-")
    assert (done.returncode, done.stdout) == (exits.USAGE, b"")
    assert b"standard input is closed" in done.stderr


def in_shell(arguments: tuple[str, ...], where: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {where}', "sh", *COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )


# --- Ctrl-C -------------------------------------------------------------------------------------------------


MOMENTS = [(LEAVES[0], module) for module in ("bstar_cli.entry", "typer", "bstar_cli.options")]
# Each command imports modules of its own after that; what ends them is the same for all.
MOMENTS += [(path, "bstar_cli.main") for path in LEAVES[::6]]


@pytest.mark.parametrize(("path", "module"), MOMENTS, ids=[" ".join(path) + f" {at}" for path, at in MOMENTS])
@pytest.mark.loopback
def test_ctrl_c_while_a_command_begins_ends_it_in_silence(path: tuple[str, ...], module: str) -> None:
    """The interpreter tells each module that it has imported, so the moment is known."""
    with begun("-X", "importtime", "-m", "bstar_cli", *path, "--help") as process:
        wait_for_import(process, module)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=LIMIT_S)
    talk = [line for line in err.decode().splitlines() if not line.startswith("import time:")]
    assert talk == []
    # After the last module the help may have been printed, and the command is at its end.
    assert process.returncode in ({exits.INTERRUPTED} if not out else {exits.INTERRUPTED, 0, -signal.SIGINT})


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("status", "--timeout", "60"), exits.INTERRUPTED),
        (("call", "echo", "--timeout", "60"), exits.INTERRUPTED),
        (("bench", "echo", "--timeout", "60"), exits.INTERRUPTED),
        (("worker", "--service", "echo"), exits.OK),
        # What is outstanding is waited for, and lost.
        (("load", "--timeout", "0.5"), exits.FAILED),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)
@pytest.mark.loopback
def test_ctrl_c_while_a_command_waits_for_a_node_ends_it_without_a_traceback(
    arguments: tuple[str, ...], code: int
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(LIMIT_S)
        where = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with begun("-m", "bstar_cli", *arguments, "--endpoints", where) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                _, err = process.communicate(timeout=LIMIT_S)
    assert b"Traceback" not in err
    assert b"Exception ignored" not in err
    assert process.returncode == code


# --- SIGHUP -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "code"), [*dict.fromkeys(("serve", "arbiter", "http", "run", "worker"), 0).items(), ("top", -1)]
)
@pytest.mark.loopback
def test_a_hangup_ends_no_program_that_stays(verb: str, code: int) -> None:
    with begun("-X", "importtime", "-m", "bstar_cli", verb, "--help") as process:
        wait_for_import(process, "bstar_cli.entry")
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == code


@pytest.mark.loopback
def test_a_node_that_begins_reads_its_configuration_again_when_it_can(tmp_path: Path) -> None:
    config = tmp_path / "node.yaml"
    with LoopbackHost() as host:
        names = ("clients", "state", "peer_state")
        endpoints = {name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, host.ports(3), strict=True)}
        settings = {"role": "primary", "endpoints": endpoints, "http": {"bind": None}}
        config.write_text(json.dumps(settings))
        with begun("-X", "importtime", "-m", "bstar_cli", "serve", "--config", str(config)) as process:
            wait_for_import(process, "bstar_broker.server")
            config.write_text(json.dumps(settings | {"limits": {"services_max": 7}}))
            process.send_signal(signal.SIGHUP)
            wait_for_line(process, lambda line: b"read again" in line and b"limits.services_max" in line)
            process.terminate()
            process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0


def wait_for_import(process: subprocess.Popen[bytes], module: str) -> None:
    wait_for_line(process, lambda line: line.split(b"|")[-1].strip() == module.encode())


def wait_for_line(process: subprocess.Popen[bytes], is_it: Callable[[bytes], bool]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if is_it(line):
            return
    pytest.fail("the process ended before")


@contextmanager
def begun(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that heeds SIGINT and SIGHUP, whatever the tests do, and is ended with the block."""

    def heed() -> None:
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed,  # noqa: PLW1509 - no threads here
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.loopback
def test_ctrl_c_that_is_ignored_from_outside_stays_ignored() -> None:
    code = "import signal, bstar_cli.entry as e, sys; sys.argv = ['bstar', 'version']; e.main(); "
    code += "print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    done = subprocess.run(
        ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", sys.executable, "-c", code],
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stdout.splitlines()[-1] == b"True"


# --- options ------------------------------------------------------------------------------------------------


def test_a_letter_means_the_same_everywhere_and_belongs_to_its_option_everywhere() -> None:
    names_of_letter: dict[str, set[str]] = defaultdict(set)
    letters_of_name: dict[str, set[str]] = defaultdict(set)
    for command in TREE.values():
        for parameter in command.params:
            options = [option for option in parameter.opts if option.startswith("-")]
            letters = [option for option in options if not option.startswith("--")]
            for name in (option for option in options if option.startswith("--")):
                letters_of_name[name].add(" ".join(letters))
                for letter in letters:
                    names_of_letter[letter].add(name)
    assert {letter: names for letter, names in names_of_letter.items() if len(names) > 1} == {}
    assert {name: letters for name, letters in letters_of_name.items() if len(letters) > 1} == {}
    assert names_of_letter["-c"] == {"--config"}


# --- a handler's module -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def handle(request)\n    return b''\n", r"SyntaxError: expected ':' \(broken_.*\.py, line 1\)"),
        ("def handle(request):\n\treturn (\n", r"SyntaxError: .* line 2\)"),
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("x = 1\ny = x / 0\n", r"ZeroDivisionError: division by zero \(.*broken_.*\.py, line 2\)"),
        ("import sys\nsys.exit(0)\n", r"SystemExit: 0 \(.*broken_.*\.py, line 2\)"),
        ("raise KeyError('a')\n", "KeyError: 'a'"),
    ],
)
def test_a_handlers_module_that_cannot_be_imported_is_wrong_usage(
    source: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"broken_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["worker", "--service", "echo", f"{name}:handle"]) == exits.USAGE
    shown = capsys.readouterr().err
    assert re.search(rf"the handler '{name}:handle' cannot be imported: {told}", shown), shown
    assert "Traceback" not in shown
