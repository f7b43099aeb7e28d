"""``bstar durable`` against a store in memory: what they print, and how they end."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator

import pytest

from bstar.wire.durable import Cause, Serial, State
from bstar.wire.progress import Progress
from bstar_cli import exits
from bstar_cli.main import main
from support.fake_store import FakeStore
from support.scripted import PASSIVE, ScriptedBroker, status

pytestmark = pytest.mark.loopback

ID = "00112233445566778899aabbccddeeff"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True, params=["UTC"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of this machine."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def broker(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedBroker]:
    with ScriptedBroker(on_request=store) as broker:
        monkeypatch.setenv("BSTAR_ENDPOINTS", broker.endpoint)
        yield broker


@pytest.fixture
def run(broker: ScriptedBroker, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, *([] if "--timeout" in arguments else ["--timeout", "30"])])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return run


def submit(run: Run, *arguments: str) -> str:
    code, out, err = run("durable", "submit", *arguments)
    assert (code, err) == (0, "")
    return out.strip()


def test_a_request_that_runs_is_shown_with_its_progress(run: Run, store: FakeStore) -> None:
    request_id = submit(run, "film", "x")
    store.end(request_id, state=State.PENDING, progress=Progress(12, 40, "scenes"))
    code, out, _ = run("durable", "show", request_id)
    assert code == 0
    assert re.search(r"^progress +12 of 40: scenes$", out, re.MULTILINE)
    _, out, _ = run("durable", "show", request_id, "--json")
    assert json.loads(out)["progress"] == {"done": 12, "total": 40, "text": "scenes"}
    _, out, _ = run("durable", "ls")
    assert "12 of 40: scenes" in out


def test_a_submit_prints_the_id_and_a_result_the_answer(run: Run, store: FakeStore) -> None:
    request_id = submit(run, "price", "a", "@@b", "--priority", "3", "--delay", "1.5m", "--expires", "2h")
    stored = store.submits[bytes.fromhex(request_id)]
    assert (stored.service, stored.body, stored.priority) == (b"price", [b"a", b"@b"], 3)
    assert (stored.delay_ms, stored.expires_ms, stored.attempts_max) == (90_000, 7_200_000, 0)
    code, out, err = run("durable", "result", request_id)
    assert (code, out, err) == (exits.PENDING, "", f"{request_id}: it has not ended yet\n")
    store.end(request_id, b"\xff\n")
    code, out, err = run("durable", "result", request_id, "--json", "--close")
    assert (code, json.loads(out)["frames"], json.loads(out)["attempts"]) == (0, [{"base64": "/wo="}], 1)
    code, out, err = run("durable", "result", request_id)
    assert (code, out) == (exits.FAILED, "")
    assert "UnknownRequestError: the store has no durable request" in err


def test_a_group_is_sent_and_shown(run: Run, store: FakeStore) -> None:
    request_id = submit(run, "price", "a", "--group", "customer 7", "--priority", "3")
    assert store.submits[bytes.fromhex(request_id)].priority == Serial(3, "customer 7")
    _, out, _ = run("durable", "show", request_id)
    assert re.search(r"^group +customer 7$", out, re.MULTILINE)
    _, out, _ = run("durable", "ls")
    assert "customer 7" in out
    _, out, _ = run("durable", "ls", "--json")
    assert json.loads(out)["group"] == "customer 7"
    code, _, err = run("durable", "submit", "price", "a", "--group", "")
    assert (code, "a group's name has 1 to 128 characters, not 0" in err) == (exits.USAGE, True)


def test_a_submit_says_when_and_how_often(run: Run, store: FakeStore) -> None:
    options = [
        "--at",
        "2027-01-31T18:00:00+01:00",
        "--attempts",
        "7",
        "--backoff",
        "0.5",
        "--backoff-max",
        "1d",
    ]
    first, again = (submit(run, "price", "x", "--key", "k", *options) for _ in range(2))
    assert first == again
    stored = store.submits[bytes.fromhex(first)]
    assert (stored.at_ms, stored.attempts_max) == (1_801_414_800_000, 7)
    assert (stored.backoff_ms, stored.backoff_max_ms) == (500, 86_400_000)


def test_a_dead_letter_is_shown_retried_and_forgotten(run: Run, store: FakeStore) -> None:
    dead, other = submit(run, "price", "a"), submit(run, "price", "b")
    store.end(other)
    store.end(dead, state=State.DEAD, attempts=5, cause=Cause.FAILED, text="ValueError: \x1b[31mno")
    code, out, _ = run("durable", "ls", "--state", "dead")
    assert code == 0
    assert dead in out
    assert other not in out
    assert "failed: ValueError: " in out
    assert "\x1b[31mno" not in out, "a terminal would obey it"
    code, out, _ = run("durable", "show", dead)
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (lines["state"], lines["attempts"], lines["cause"]) == ("dead", "5", "failed")
    assert lines["submitted_at"] == "2023-11-14 22:13:20"
    code, out, err = run("durable", "retry", dead, other)
    assert (code, out) == (exits.FAILED, "1 pending again, 1 not\n")
    assert err == f"{other}: not pending again: its state is answered\n"
    store.end(dead, state=State.DEAD)
    assert run("durable", "close", "--state", "dead")[:2] == (0, "1 forgotten\n")
    assert [each.hex() for each in store.standings] == [other]
    store.end(other, state=State.DEAD)
    assert run("durable", "retry", "--all")[:2] == (0, "1 pending again\n")
    assert run("durable", "ls", "--state", "dead") == (0, "", "")


def test_requests_are_chosen_by_what_they_are(run: Run, store: FakeStore) -> None:
    ids = [submit(run, service, "x") for service in ("price", "book", "price")]
    assert run("durable", "cancel", "--service", "price")[:2] == (0, "2 cancelled\n")
    code, out, _ = run("durable", "ls", "--json")
    states = {each["id"]: each["state"] for each in map(json.loads, out.splitlines())}
    assert states == {ids[0]: "cancelled", ids[1]: "pending", ids[2]: "cancelled"}
    code, out, err = run("durable", "ls", "--limit", "2")
    assert (code, len(out.splitlines()), err) == (0, 3, "the first 2 of them; --limit shows more\n")
    code, out, err = run("durable", "cancel", *ids)
    assert (code, out) == (0, "3 cancelled\n")
    assert run("durable", "close", "--state", "cancelled")[:2] == (0, "3 forgotten\n")
    code, out, err = run("durable", "close", ids[0], "--json")
    assert (code, json.loads(out)) == (exits.FAILED, {"id": ids[0], "state": "unknown", "done": False})


def test_many_requests_are_all_done(run: Run, store: FakeStore) -> None:
    submit(run, "price", "x")
    [standing] = store.standings.values()
    for number in range(3_000):
        other = number.to_bytes(16, "big")
        store.standings[other] = type(standing)(other, State.DEAD, b"price")
    assert run("durable", "retry", "--service", "price")[:2] == (0, "3,000 pending again\n")
    assert {each.state for each in store.standings.values()} == {State.PENDING}


def test_an_export_has_the_bodies(run: Run, store: FakeStore) -> None:
    ids = [submit(run, "price", "a", "b"), submit(run, "book", "ü")]
    code, out, err = run("durable", "export")
    assert (code, err) == (0, "")
    exported = [json.loads(line) for line in out.splitlines()]
    assert [(each["id"], each["frames"]) for each in exported] == [(ids[0], ["a", "b"]), (ids[1], ["ü"])]


def test_what_is_not_there_is_said(run: Run) -> None:
    code, out, err = run("durable", "show", ID)
    assert (code, out, err) == (exits.FAILED, "", f"{ID}: the store does not have it\n")


@pytest.mark.parametrize("state", [State.DEAD, State.CANCELLED])
def test_a_result_that_will_never_be_is_1(run: Run, store: FakeStore, state: State) -> None:
    request_id = submit(run, "price", "x")
    store.end(request_id, state=state, cause=Cause.EXPIRED)
    code, out, err = run("durable", "result", request_id, "--wait", "1h")
    assert (code, out) == (exits.FAILED, "")
    assert request_id in err


def test_nobody_there_is_3(run: Run, broker: ScriptedBroker) -> None:
    broker.status = status(PASSIVE, retry_after_ms=0xFFFF_FFFF)
    for arguments in (["submit", "price", "x"], ["ls"], ["show", ID], ["result", ID]):
        code, out, err = run("durable", *arguments, "--timeout", "0.1")
        assert (code, out) == (exits.NOT_EXECUTED, "")
        assert "NoActiveNodeError" in err
    for arguments in (["submit", "price", "x"], ["schedule", "price", "x", "--every", "1m"]):
        code, out, err = run("durable", *arguments, "--timeout", "0.1", "--json")
        said = json.loads(out)
        assert (code, said["error"]) == (exits.NOT_EXECUTED, "NoActiveNodeError")
        assert (said["may_have_executed"], "NoActiveNodeError" in err) == (False, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["durable", "cancel"], "which requests? Name them by id, or choose them by"),
        (["durable", "cancel", ID, "--all"], "exclude each other"),
        (["durable", "close", ID, "--state", "dead"], "exclude each other"),
        (["durable", "cancel", "x"], "32 hexadecimal digits"),
        (["durable", "ls", "--older", "soon"], "--older soon: write seconds, or a number with s, m, h or d"),
        (["durable", "submit", "price", "x", "--at", "2027-01-31T18:00:00"], "add the time zone"),
        (["durable", "submit", "price", "x", "--at", "soon"], "--at soon"),
        (["durable", "submit", "price", "x", "--delay", "1", "--at", "2027-01-31T18:00:00Z"], "give one of"),
        (["durable", "submit", "price", "x", "--expires", "0"], "expires is at least 0.001 s, not 0"),
        (["durable", "submit", "store.submit"], "belong to the broker"),
        (["durable", "result", ID, "--raw", "--json"], "--raw and --json exclude each other"),
    ],
)
def test_wrong_usage_is_2(run: Run, arguments: list[str], text: str) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (exits.USAGE, "")
    assert text in err


def test_a_client_of_several_pairs_is_told_to_name_the_service(run: Run, broker: ScriptedBroker) -> None:
    code, _, err = run("durable", "show", ID, "-e", f"{broker.endpoint};tcp://127.0.0.1:1")
    assert code == exits.USAGE
    assert "name the service of the durable request" in err


def test_a_paragraph_of_help_is_as_wide_as_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["durable", "submit", "--help"]) == 0
    assert "the answer is lost: submit it again with the same --key." in capsys.readouterr().out


@pytest.mark.parametrize("zone", ["XYZ-5:45"], indirect=True)
def test_times_are_of_this_machines_zone_as_in_the_history(run: Run, store: FakeStore) -> None:
    """They were in UTC, beside the local ones of ``bstar history`` and ``bstar workers ls``."""
    request_id = submit(run, "price", "a")
    for command in ("ls",), ("show", request_id):
        assert "2023-11-15 03:58:20" in run("durable", *command)[1]


def test_a_schedule_is_listed_and_shown_with_its_next_time_and_its_last(run: Run, store: FakeStore) -> None:
    request_id = submit(run, "tick")
    store.end(
        request_id, state=State.SCHEDULED, ended_ms=0, due_ms=1_800_000_000_000, last_ms=1_799_999_940_000
    )
    for command in (("ls", "--state", "scheduled"), ("show", request_id)):
        code, out, _ = run("durable", *command)
        assert code == 0
        assert "2027-01-15 08:00:00" in out
        assert "2027-01-15 07:59:00" in out
