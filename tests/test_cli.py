"""The command line: exit codes, what goes to which stream, and errors without tracebacks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pytest
import typer
from typer._coercion import build_runtime_param

import bstar
from bstar.base.patterns import closest
from bstar.errors import (
    BstarError,
    BusyError,
    CallTimeoutError,
    ConfigurationError,
    DualActiveError,
    DualPassiveError,
    HandlerError,
    NoActiveNodeError,
    OutcomeUnknownError,
    PeerMismatchError,
    RejectedError,
    StoreError,
    UnknownRequestError,
    WorkerError,
)
from bstar.settings import sample_configuration
from bstar_broker.operate.orders import GROUPS, ORDERS, Answer
from bstar_cli import exits
from bstar_cli.coercion import UNUSUAL, usual
from bstar_cli.frames import frames_of
from bstar_cli.main import app, main
from bstar_cli.options import fleet_of, parse_set
from bstar_cli.orders import _print, _refuse
from bstar_cli.probe import probe
from bstar_cli.worker import find_handler
from bstar_client import Declined, HAClient, Request, Worker
from bstar_client.arguments.environment import DEFAULT_ENDPOINTS
from bstar_testing import Pair
from bstar_testing.nodes import COMMAND
from support.brokers import Broker, lone_broker

GARBAGE = """
import gc, bstar_cli.entry
from bstar_cli.main import main
assert not gc.isenabled()
assert main(["version"]) == 0
assert gc.isenabled()
assert gc.get_freeze_count() > 10_000
"""
OPTION_VALUES = {
    "text": ("", "a", "1"),
    "number": ("2", "9", 3, "1", "10", "-3", "03", "3.0", "٣", " 3", True),
    "part": ("0", "1.5", 0.5, "-1", "1e3", "nan", "1_0"),
    "path": (__file__, "no/such/file"),
    "choice": ("a", "b", "c", "A"),
    "texts": (["a", "b"], "a", ("c",)),
    "paths": (["a", __file__], ["a", 1]),
}
USUAL_VALUES = {
    "text": ("", "a", "1"),
    "number": ("2", "9", 3, "03"),
    "part": ("0", "1.5", 0.5),
    "path": (__file__, "no/such/file"),
    "choice": ("a", "b"),
    "texts": (["a", "b"], ("c",)),
    "paths": (["a", __file__],),
}
VERBS = [
    *("serve", "worker", "run", "call", "load", "bench", "status", "check-config", "sample-config", "demo"),
    *("durable-demo", "emq-jobmanager", "emq-admin", "version"),
]
LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("BSTAR_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")


def request(*frames: bytes) -> Request:
    return Request(b"service", frames, b"", False, 1, None, b"")


# --- help and usage -------------------------------------------------------------------------------------


def test_the_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in VERBS)


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command that does something."""
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))
    if not hasattr(command, "commands"):
        yield words


def test_every_command_explains_itself_with_an_example_and_its_exit_codes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen = set()
    for words in commands(typer.main.get_command(app)):
        assert main([*words, "--help"]) == 0
        shown = capsys.readouterr().out
        before, _, examples = shown.partition("Example")
        command = " ".join(("bstar", *words))
        if command != "bstar version":
            assert command in before, words
            assert command in examples, words
        if words[0] not in ("version", "sample-config"):  # one prints a word, the other a file
            assert "Exit codes" in shown, words
        seen.add(words[0])
    assert seen > {*VERBS, "durable", "services"}


def test_an_order_without_a_configuration_says_that_the_variable_does_not_lead_to_a_node(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BSTAR_ENDPOINTS", "tcp://127.0.0.1:1,tcp://127.0.0.1:2")
    assert main(["workers", "ls"]) == exits.USAGE
    said = capsys.readouterr().err
    assert "--config FILE or BSTAR_CONFIG" in said
    assert "one node on this machine" in said
    assert "BSTAR_ENDPOINTS does not lead there" in said


@pytest.mark.parametrize("group", list(GROUPS))
def test_the_help_names_the_verbs_of_a_group(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    verbs = [order.command.split()[1] for order in ORDERS if order.command.startswith(f"{group} ")]
    assert main(["--help"]) == 0
    assert f": {', '.join(verbs)} (docs/operations.md)." in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_the_version_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"bstar {bstar.__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["unheard-of"],
        ["call"],
        ["worker"],
        ["call", "echo", "--timeout", "soon"],
        ["call", "echo", "--raw", "--json"],
        ["call", "echo", "--all", "--raw"],
        ["call", "echo", "--all", "--stream"],
        ["call", "echo", "--all", "--key", "x"],
        ["call", "echo", "x", "--endpoints", "here"],
        ["call", "echo", "x", "--endpoints", ","],
        ["call", "echo", "@/does/not/exist"],
        ["status", "--endpoints", "tcp://127.0.0.1:1,tcp://127.0.0.1:1"],
        ["worker", "--service", "echo", "nothing"],
        ["worker", "--service", "echo", "--seconds", "1"],
        ["worker", "--service", "mmi.mine"],
        ["serve"],
        ["serve", "--set", "nonsense"],
        ["store", "check", "x" * 300],
        ["history", "x" * 300],
        ["epoch", "show", "x" * 300],
        ["epoch", "reset", "x" * 300],
        ["call", "\udcff", "x"],
        ["status", "--service", "\udcff", "--endpoints", "tcp://127.0.0.1:1"],
        ["services", "show", "\udcff"],
        ["load", "\udcff"],
        ["bench", "\udcff"],
        ["durable", "schedule", "x", "--cron", "\udcff"],
        ["run", "x:y", "--memory-max", "9" * 5_000 + "M"],
        ["http", "--insecure", "--listen", "x" * 64 + ":80"],
        ["serve", "--config", "/does/not/exist.yaml"],
        ["check-config", "a", "b", "c"],
        ["sample-config", "--role", "arbiter"],
        ["demo", "--rate", "0"],
        ["load", "--rate", "0"],
        ["load", "--endpoints", "here"],
    ],
)
def test_wrong_usage_is_2_without_a_traceback(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err
    assert "Traceback" not in shown.err


def test_an_argument_that_is_no_text_is_a_body_of_its_bytes() -> None:
    assert frames_of(["\udcff", "@@\udcff"]) == [b"\xff", b"@\xff"]


def test_what_a_node_says_of_an_order_does_not_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """A reason is what another operator wrote."""
    with pytest.raises(typer.Exit):
        _refuse("takeovers are paused by eve: \x1b[2J", as_json=False)
    _print(Answer(text="paused by eve: \x1b[2J"), as_json=False)
    assert "\x1b" not in "".join(capsys.readouterr())


def test_a_family_that_this_machine_lacks_does_not_show_that_none_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = [(99, socket.SOCK_STREAM, 0, "", ("::1", 1))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert probe("tcp://localhost:1")[0] == "unreachable"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigurationError("x"), 2),
        (HandlerError("x"), 1),
        (RejectedError("x", code=6), 1),
        (BusyError("x"), 3),
        (NoActiveNodeError("x"), 3),
        (CallTimeoutError("x", may_have_executed=False), 3),
        (CallTimeoutError("x", may_have_executed=True), 4),
        (OutcomeUnknownError("x"), 4),
        (DualActiveError("x"), 70),
        (DualPassiveError("x"), 71),
        (PeerMismatchError("x"), 72),
        (WorkerError("x"), 1),
        (UnknownRequestError("x", request_id="y"), 1),
        (StoreError("x"), 1),
    ],
)
def test_every_error_has_its_exit_code(error: BstarError, code: int) -> None:
    assert exits.code_of(error) == code


# --- options --------------------------------------------------------------------------------------------


def test_endpoints_come_from_the_option_then_the_variable_then_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fleet_of(None, None).endpoints == tuple(DEFAULT_ENDPOINTS.split(","))
    monkeypatch.setenv("BSTAR_ENDPOINTS", "tcp://one:1, tcp://two:2")
    assert fleet_of(None, None).endpoints == ("tcp://one:1", "tcp://two:2")
    assert fleet_of("tcp://three:3", None).endpoints == ("tcp://three:3",)


def test_a_set_option_may_hold_an_equals_sign() -> None:
    assert parse_set(["pair=a=b", "log.level=debug"]) == {"pair": "a=b", "log.level": "debug"}


# --- configuration --------------------------------------------------------------------------------------


def test_a_sample_is_right_and_two_are_a_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for role in ("primary", "backup"):
        assert main(["sample-config", "--role", role]) == 0
        file = tmp_path / f"{role}.yaml"
        file.write_text(capsys.readouterr().out)
        files.append(str(file))
    assert main(["check-config", files[0]]) == 0
    assert main(["check-config", *files]) == 0
    assert "the two are a pair" in capsys.readouterr().out


def test_a_front_on_one_node_only_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for role in ("primary", "backup"):
        main(["sample-config", "--role", role])
        file = tmp_path / f"{role}.yaml"
        file.write_text(capsys.readouterr().out)
        files.append(file)
    text = files[1].read_text()
    files[1].write_text(text.replace("    clients: null", "    clients: tcp://127.0.0.1:5021", 1))
    assert main(["check-config", *map(str, files)]) == 0
    told = capsys.readouterr()
    assert "the two are a pair" in told.out
    assert told.err == (
        "warning: fronts.ppp.clients: the backup has it and the primary has not, so these peers lose service "
        "when the backup ends\n"
    )


@pytest.mark.parametrize(
    ("edits", "is_warned"),
    [
        ({"when_alone: refuse": "when_alone: accept"}, True),
        ({}, False),
        (
            {"when_alone: refuse": "when_alone: accept", "arbiter: null": "arbiter: tcp://127.0.0.1:5009"},
            False,
        ),
        (
            {
                "when_alone: refuse": "when_alone: accept",
                "directory: store\n  link: tcp://127.0.0.1:5005": "link: null",
            },
            False,
        ),
    ],
)
def test_a_store_that_accepts_alone_without_an_arbiter_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], edits: dict[str, str], is_warned: bool
) -> None:
    files = []
    for role in ("primary", "backup"):
        main(["sample-config", "--role", role])
        store = "store:\n  directory: store\n  link: tcp://127.0.0.1:5005\n  when_alone: refuse\n"
        text = capsys.readouterr().out.partition("\nstore:\n")[0] + "\n" + store
        for old, new in edits.items():
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / f"{role}.yaml"
        file.write_text(text.replace("directory: store", f"directory: {tmp_path / role}"))
        files.append(str(file))
    for some in (files[:1], files):
        assert main(["check-config", *some]) == 0
        told = capsys.readouterr().err.splitlines()
        assert [line.partition(" loses ")[0] for line in told] == is_warned * [
            "warning: store.when_alone: accept without endpoints.arbiter"
        ]


@pytest.mark.loopback
@pytest.mark.parametrize("when_alone", ["accept", "refuse"])
def test_a_node_that_accepts_alone_without_an_arbiter_logs_a_warning(tmp_path: Path, when_alone: str) -> None:
    with Pair(tmp_path, has_store=True, settings={"store.when_alone": when_alone}) as pair:
        pair.start()
        lines = [json.loads(line) for line in (tmp_path / "primary.log").read_text().splitlines()]
    told = [line["level"] for line in lines if "accept without endpoints.arbiter" in line["event"]]
    assert told == ["warning"] * (when_alone == "accept")


@pytest.mark.parametrize(
    ("patterns", "overlaps"),
    [
        (["*", "mail.*", "mail.eu"], [("mail.*", "*"), ("mail.eu", "mail.*")]),
        (["mail.eu", "mail.*", "*"], [("mail.eu", "mail.*"), ("mail.*", "*")]),
        (["mail*", "mail.*"], [("mail.*", "mail*")]),
        (["mail", "mail.*", "price"], []),
    ],
)
def test_patterns_of_services_that_overlap_are_named_with_the_one_that_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], patterns: list[str], overlaps: list[tuple[str, str]]
) -> None:
    main(["sample-config"])
    entries = json.dumps({pattern: {"running_max": 1} for pattern in patterns})
    file = tmp_path / "primary.yaml"
    file.write_text(capsys.readouterr().out.replace("\nservices: {}\n", f"\nservices: {entries}\n", 1))
    assert main(["check-config", str(file)]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "services:" in line] == [
        f"{file}: services: what matches {inner} has its limits alone, not those of {outer}"
        for inner, outer in overlaps
    ]
    for inner, _ in overlaps:
        assert closest(inner.removesuffix("*").encode(), patterns) == inner


def test_two_nodes_with_other_limits_of_a_service_are_no_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = []
    for role, running_max in (("primary", 1), ("backup", 2)):
        main(["sample-config", "--role", role])
        entries = f"services: {{mail: {{running_max: {running_max}}}}}"
        files.append(tmp_path / f"{role}.yaml")
        files[-1].write_text(capsys.readouterr().out.replace("services: {}", entries, 1))
    assert main(["check-config", *map(str, files)]) == 2
    assert "services" in capsys.readouterr().err


def test_two_of_the_same_role_are_no_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["sample-config"])
    file = tmp_path / "primary.yaml"
    file.write_text(capsys.readouterr().out)
    assert main(["check-config", str(file), str(file)]) == 2
    assert "both are primary" in capsys.readouterr().err


def test_a_wrong_key_is_told_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("role: primary\nlimits: {worker_max: 3}\n")
    assert main(["check-config", str(file)]) == 2
    assert "limits.worker_max: unknown key; did you mean limits.workers_max?" in capsys.readouterr().err


def test_two_nodes_that_do_not_list_each_other_are_no_pair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The backup got a new key and list, and the primary kept its old list."""
    files = []
    for role, folder in (("primary", "old"), ("backup", "old"), ("backup", "new")):
        keys = tmp_path / folder
        main(["keys", "new", "primary", "backup", "--peer", "--out", str(keys), "--if-missing"])
        capsys.readouterr()
        main(["sample-config", "--role", role])
        text = capsys.readouterr().out
        paths = f"key: {keys}/{role}.key\n  principals: {keys}/principals.yaml"
        text = text.replace("key: null", paths, 1).replace("  principals: null\n", "", 1)
        files.append(tmp_path / f"{role}-{folder}.yaml")
        files[-1].write_text(text)
    primary, backup, strange = map(str, files)
    assert main(["check-config", primary, backup]) == 0
    assert main(["check-config", primary, strange]) == 2
    assert "the list of the primary" in capsys.readouterr().err


def test_the_key_of_a_node_of_another_machine_need_not_be_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "new", "shop", "--out", str(tmp_path), "--calls", "price"]) == exits.OK
    files = []
    for role in ("primary", "backup"):
        text = sample_configuration(role).replace(
            "principals: null", f"principals: {tmp_path}/principals.yaml"
        )
        section, _, rest = text.partition("\nsecurity:\n")
        files.append(tmp_path / f"{role}.yaml")
        files[-1].write_text(f"{section}\nsecurity:\n{rest.replace('key: null', 'key: /nowhere/key', 1)}")
    capsys.readouterr()
    assert main(["check-config", *map(str, files)]) == 0
    assert f"{files[0]}: not checked: /nowhere/key is not on this machine" in capsys.readouterr().err


# --- handlers -------------------------------------------------------------------------------------------


def test_echo_answers_with_the_body() -> None:
    assert find_handler("echo")(request(b"a", b"b")) == (b"a", b"b")


def test_fail_raises_the_body() -> None:
    with pytest.raises(RuntimeError, match="no luck"):
        find_handler("fail")(request(b"no", b"luck"))


def test_sleep_takes_its_time_from_the_option_or_the_body() -> None:
    assert find_handler("sleep", seconds=0.0)(request(b"x")) == (b"x",)
    assert find_handler("sleep")(request(b"0")) == (b"0",)
    for nonsense in (b"soon", b"-1", b"nan", b"1e99"):
        with pytest.raises(ValueError, match="seconds"):
            find_handler("sleep")(request(nonsense))


def test_a_function_is_found_by_its_name() -> None:
    assert find_handler("bstar_cli.demo_worker:handle").__name__ == "handle"


@pytest.mark.parametrize(
    "name", ["echoo", ":f", "json:", "no.such.module:f", "json:no_such_function", "json:__name__"]
)
def test_a_handler_that_is_not_there_is_a_configuration_error(name: str) -> None:
    with pytest.raises(ConfigurationError, match="handler"):
        find_handler(name)


# --- with real processes --------------------------------------------------------------------------------


def run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], input=given, capture_output=True, timeout=LIMIT_S, check=False
    )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with lone_broker(tmp_path_factory.mktemp("cli")) as broker:
        yield broker


class Child:
    """A worker process that is ended with the test."""

    def __init__(self, node: Broker, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, "worker", "--endpoints", node.endpoint, "--log-format", "json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        assert self.process.stderr is not None
        while not self.events or self.events[-1]["event"] != "registered":
            line = self.process.stderr.readline()
            assert line, "the worker ended"
            self.events.append(json.loads(line))
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, bytes, bytes]:
        self.process.send_signal(signal.SIGTERM)
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, err


@pytest.mark.loopback
def test_a_call_prints_the_reply_and_nothing_else(node: Broker) -> None:
    with Child(node, "--service", "cli-echo"):
        done = run("call", "cli-echo", "hello", "-", "--endpoints", node.endpoint, given=b"there")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"hello\nthere\n", b"")


@pytest.mark.loopback
def test_a_call_takes_a_file_and_prints_octets_as_they_are(node: Broker, tmp_path: Path) -> None:
    file = tmp_path / "body"
    file.write_bytes(bytes(range(256)))
    with Child(node, "--service", "cli-file"):
        for options in ((), ("--raw",)):
            done = run("call", "cli-file", f"@{file}", *options, "--endpoints", node.endpoint)
            assert done.stdout == bytes(range(256))
        done = run("call", "cli-file", "@@x", "--json", "--endpoints", node.endpoint)
        reply = json.loads(done.stdout)
        assert reply["frames"] == ["@x"]
        assert reply["endpoint"] == node.endpoint
        assert reply["final"] is True


@pytest.mark.loopback
def test_a_call_of_all_workers_prints_a_line_for_each_and_ends_with_the_first_error(node: Broker) -> None:
    call = ("call", "cli-all", "hello\x1b", "--all", "--endpoints", node.endpoint)
    done = run(*call)
    assert (done.returncode, done.stdout) == (3, b"")
    assert b'no worker offers service "cli-all"' in done.stderr
    with Child(node, "--service", "cli-all"), Child(node, "--service", "cli-all"):
        done = run(*call)
        lines = [line.split(" ", 1) for line in done.stdout.decode().splitlines()]
        assert (done.returncode, [text for _, text in lines]) == (0, ["hello\\x1b"] * 2)
        with Child(node, "--service", "cli-all", "fail"):
            done = run(*call)
            assert done.returncode == 1
            assert [" failed: RuntimeError: hello" in line for line in done.stdout.decode().splitlines()] == [
                False,
                False,
                True,
            ]
            done = run(*call, "--json")
            told = [json.loads(line) for line in done.stdout.splitlines()]
            assert [each["worker"] for each in told[:2]] == [name for name, _ in lines]
            assert [each.get("error") for each in told] == [None, None, "HandlerError"]


@pytest.mark.loopback
def test_a_failed_handler_is_1_and_said_on_stderr(node: Broker) -> None:
    with Child(node, "--service", "cli-fail", "fail"):
        done = run("call", "cli-fail", "no luck", "--endpoints", node.endpoint)
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"HandlerError: RuntimeError: no luck" in done.stderr
    assert b"Traceback" not in done.stderr


def declining(request: Request) -> bytes:
    """Declines what it gets, with data or without."""
    near = {"near": [6, "\x1b"]} if request.body == b"near" else None
    raise Declined("no-such-sku", "we do not sell 7", data=near)


@pytest.mark.loopback
def test_a_declined_call_shows_its_code_and_its_data(node: Broker) -> None:
    call, text = ("call", "cli-decline", "--endpoints", node.endpoint), "no-such-sku: we do not sell 7"
    data: object
    with Worker(node.endpoint, "cli-decline", declining):
        for body, data, shown in (
            ("near", {"near": [6, "\x1b"]}, r' {"near":[6,"\u001b"]}'),
            ("x", None, ""),
        ):
            done = run(*call, body)
            assert (done.returncode, done.stdout) == (1, b"")
            assert done.stderr.decode() == f"bstar: DeclinedError: {text}{shown}\n"
            done = run(*call, body, "--json")
            told = json.loads(done.stdout)
            assert told.pop("seconds") > 0
            assert told == {
                "error": "DeclinedError", "text": text, "may_have_executed": True,
                "code": "no-such-sku", "data": data,
            }  # fmt: skip
            assert f" failed: {text}{shown}\n" in run(*call, body, "--all").stdout.decode()


@pytest.mark.loopback
def test_a_call_that_nobody_began_is_3(node: Broker) -> None:
    call = ("call", "cli-nobody", "x", "--timeout", "3", "--json", "--endpoints", node.endpoint)
    # The node says so 150 ms before the call's own time is over; a busy machine may miss that, not each time.
    done = next((done for done in (run(*call) for _ in range(10)) if done.returncode == 3), None)
    assert done is not None
    assert json.loads(done.stdout)["may_have_executed"] is False


@pytest.mark.loopback
def test_a_call_whose_reply_did_not_come_is_4(node: Broker) -> None:
    with Child(node, "--service", "cli-slow", "sleep", "--seconds", "8"):
        done = run("call", "cli-slow", "x", "--timeout", "3", "--endpoints", node.endpoint)
    assert done.returncode == 4


@pytest.mark.loopback
def test_a_worker_that_keeps_its_replies_knows_a_key_again(node: Broker, tmp_path: Path) -> None:
    """It would echo another body as well; that it refuses says that it has kept the first one's reply."""
    call = ("call", "cli-keep", "--key", "order 7", "--endpoints", node.endpoint)
    for kept in ("memory", str(tmp_path / "replies.db")):
        with Child(node, "--service", "cli-keep", "--keep-replies", kept):
            for _ in range(2):
                assert run(*call, "hello").stdout == b"hello"
            done = run(*call, "other")
            assert done.returncode == 1
            assert b"another body" in done.stderr


@pytest.mark.loopback
def test_a_worker_says_that_it_serves_when_a_node_has_registered_it(node: Broker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        wrong = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
    endpoints = f"{wrong},ipc://no-such-socket"
    command = [*COMMAND, "worker", "--service", "echo", "--endpoints", endpoints, "--log-format", "json"]
    command += ["--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            first, pages, warning = (json.loads(process.stderr.readline()) for _ in range(3))
        finally:
            process.kill()
    assert (first["event"], first["http"]) == ("connecting", "127.0.0.1:0")
    assert re.fullmatch("health and metrics of the worker: http://127.0.0.1:[1-9][0-9]*", pages["event"])
    said = (
        f'the worker of service "echo" is not registered at {wrong}: connection refused: no process listens'
    )
    assert warning["event"].startswith(said)
    with Child(node, "--service", "cli-serving") as child:
        assert child.process.stderr is not None
        assert json.loads(child.process.stderr.readline())["event"] == "serving"


@pytest.mark.loopback
def test_a_worker_stops_in_good_order_on_sigterm(node: Broker) -> None:
    with Child(node, "--service", "cli-stop") as child:
        code, out, err = child.stop()
    assert code == 0
    assert out == b""
    assert json.loads(err.splitlines()[-1])["event"] == "stopped"


@pytest.mark.loopback
def test_status_shows_a_lone_node_and_is_not_content_with_half_a_pair(node: Broker) -> None:
    with Child(node, "--service", "cli-status"):
        done = run("status", "--endpoints", node.endpoint, "--json")
        document = json.loads(done.stdout)
        assert done.returncode == 0
        assert document["healthy"] is True
        assert document["nodes"][0]["state"]["pair"]["role"] == "primary"
        gone = "tcp://127.0.0.1:1"
        done = run("status", "--endpoints", f"{node.endpoint},{gone}", "--timeout", "10")
        assert done.returncode == 1
        assert b"cli-status" in done.stdout
        assert b"ACTIVE" in done.stdout
        assert b"does not hear its peer" in done.stderr


@pytest.mark.loopback
def test_status_tells_of_a_service_that_nobody_offers_and_has_a_status_for_it(tmp_path: Path) -> None:
    with lone_broker(tmp_path) as node, HAClient(node.endpoint) as client:
        client.request("mmi.service", b"vain")  # now there is a connection, and a node that serves
        assert len(list(client.map("vain", [b"x"] * 3, timeout=5, errors="return"))) == 3
        shown = run("status", "--endpoints", node.endpoint)
        told = run("status", "--endpoints", node.endpoint, "--json")
    assert shown.returncode == exits.SERVICE_TROUBLE
    assert b"vain: it has no worker" in shown.stderr
    assert b"the primary serves, but not all is well with vain" in shown.stderr
    document = json.loads(told.stdout)
    assert (document["healthy"], document["reason"]) == (False, "service-trouble")
    assert [(each["service"], each["sign"]) for each in document["troubles"]] == [("vain", "no-worker")]


@pytest.mark.loopback
def test_a_node_says_when_it_is_ready_and_stops_with_0(tmp_path: Path) -> None:
    with lone_broker(tmp_path, activate=False) as broker:
        assert broker.stop() == 0
        log = broker.log_path.read_text()
        events = [json.loads(line) for line in log.splitlines()]
    ready = next(event for event in events if event["event"] == "ready")
    assert ready["clients"] == broker.endpoint
    assert ready["http"] == broker.http_url
    assert ready["role"] == "primary"
    assert events[-1]["event"] == "stopped"


@pytest.mark.loopback
def test_a_node_whose_directory_or_port_is_taken_names_the_key(node: Broker) -> None:
    elsewhere = ["--set", f"state_dir={node.config_path.parent / 'another-state'}"]
    for key, options in (("state_dir: another process", []), ("endpoints.state: cannot bind", elsewhere)):
        done = run("serve", "--config", str(node.config_path), *options)
        assert done.returncode == 2
        assert key.encode() in done.stderr
        assert b"Traceback" not in done.stderr


@pytest.mark.loopback
def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bstar_cli", "--version"], capture_output=True, timeout=LIMIT_S, check=True
    )
    assert done.stdout.startswith(b"bstar ")


def _with_options(
    paths: Annotated[list[Path] | None, typer.Argument()] = None,
    *,
    text: Annotated[str | None, typer.Option()] = None,
    number: Annotated[int, typer.Option(min=2, max=9)] = 3,
    part: Annotated[float, typer.Option(min=0)] = 0.5,
    path: Annotated[Path | None, typer.Option()] = None,
    choice: Annotated[Literal["a", "b"], typer.Option()] = "a",
    texts: Annotated[list[str] | None, typer.Option()] = None,
) -> None:
    pass


def test_usual_values_become_what_typer_makes_of_them() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(_with_options)
    parameters: dict[str, Any] = {each.name: each for each in typer.main.get_command(app).params}
    context: Any = None
    for name, values in OPTION_VALUES.items():
        parameter = parameters[name]
        taken = {repr(value): usual(value, parameter) for value in (None, *values)}
        own = build_runtime_param(parameter.type_descriptor)
        for value in (None, *USUAL_VALUES[name]):
            made = own.coerce(value, param=parameter, ctx=context)
            assert (taken.pop(repr(value)), type(made)) == (made, type(made))
        assert set(taken.values()) <= {UNUSUAL}


def test_typer_itself_takes_an_option_with_more_settings(tmp_path: Path) -> None:
    def command(path: Annotated[Path, typer.Option(exists=True)] = tmp_path) -> None:
        pass

    app = typer.Typer(add_completion=False)
    app.command()(command)
    [path] = (each for each in typer.main.get_command(app).params if each.name == "path")
    assert usual(str(tmp_path), path) is UNUSUAL


@pytest.mark.loopback
def test_a_command_collects_cycles_but_not_among_what_its_imports_made() -> None:
    subprocess.run([sys.executable, "-c", GARBAGE], check=True, timeout=LIMIT_S)
