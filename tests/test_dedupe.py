"""Replies that workers keep: in memory, in a file, across processes and their deaths."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bstar.errors import ConfigurationError, LocalProtocolError, OutcomeUnknownError
from bstar_client import ReplyMemory, ReplyStore
from bstar_client.workers.reply_file import ReplyFile

WAIT_S = 30.0
ONE, TWO = b"1" * 24, b"2" * 24


@pytest.fixture(params=["memory", pytest.param("file", marks=pytest.mark.loopback)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ReplyStore]:
    if request.param == "memory":
        yield ReplyMemory()
    else:
        with_file = ReplyFile(tmp_path / "replies.db")
        yield with_file
        with_file.close()
        with_file.close()


def test_a_reply_that_was_kept_answers_repetitions_of_its_request_only(store: ReplyStore) -> None:
    assert store.begin(ONE, [b"a", b""], None) is None
    store.keep(ONE, [b"done", b"", b"x"])
    assert store.begin(ONE, [b"a", b""], None) == [b"done", b"", b"x"]
    assert store.begin(TWO, [b"a", b""], None) is None


def test_a_failure_is_not_kept(store: ReplyStore) -> None:
    assert store.begin(ONE, [b"a"], None) is None
    store.drop(ONE)
    assert store.begin(ONE, [b"other"], None) is None


@pytest.mark.parametrize("body", [[b"b"], [b"a", b""], [b""]])
def test_an_identity_with_another_body_is_refused_while_it_runs_and_afterwards(
    store: ReplyStore, body: list[bytes]
) -> None:
    assert store.begin(ONE, [b"a"], None) is None
    with pytest.raises(LocalProtocolError, match="another body"):
        store.begin(ONE, body, None)
    store.keep(ONE, [b"done"])
    with pytest.raises(LocalProtocolError, match="another body"):
        store.begin(ONE, body, None)


@pytest.mark.parametrize(("end", "expected"), [("keep", [b"done"]), ("drop", None)])
def test_a_repetition_waits_for_the_execution_that_is_under_way(
    store: ReplyStore, end: str, expected: list[bytes] | None
) -> None:
    got: list[list[bytes] | None] = []
    assert store.begin(ONE, [b"a"], None) is None
    waiting = threading.Thread(target=lambda: got.append(store.begin(ONE, [b"a"], None)))
    waiting.start()
    with pytest.raises(OutcomeUnknownError, match="still running"):
        store.begin(ONE, [b"a"], 0.0)
    if end == "keep":
        store.keep(ONE, [b"done"])
    else:
        store.drop(ONE)
    waiting.join(WAIT_S)
    assert got == [expected]


# --- memory -------------------------------------------------------------------------------------------------


def test_memory_is_bounded_in_time_count_and_octets() -> None:
    now = 0.0
    memory = ReplyMemory(keep_s=10.0, count_max=3, bytes_max=100, clock=lambda: now)

    def keep(name: int, reply: bytes) -> None:
        assert memory.begin(b"%024d" % name, [b""], None) is None
        memory.keep(b"%024d" % name, [reply])

    for name in range(5):
        keep(name, b"x" * 10)
    assert (len(memory), memory.bytes) == (3, 30)
    keep(5, b"x" * 95)
    assert (len(memory), memory.bytes) == (1, 95)
    keep(6, b"x" * 101)
    assert (len(memory), memory.bytes) == (1, 95)
    now = 10.0
    assert memory.begin(b"%024d" % 5, [b"another body now"], None) is None
    assert (len(memory), memory.bytes) == (0, 0)


@pytest.mark.parametrize("options", [{"keep_s": 0.0}, {"count_max": 0}, {"bytes_max": 0}])
def test_a_memory_that_keeps_nothing_is_a_mistake(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        ReplyMemory(**options)  # type: ignore[arg-type]  # clock is not among them


# --- a file -------------------------------------------------------------------------------------------------

_BEGIN_AND_WAIT = """
import sys
from bstar_client.workers.reply_file import ReplyFile
store = ReplyFile(sys.argv[1])
assert store.begin(b"1" * 24, [b"a"], None) is None
print("begun", flush=True)
if sys.stdin.readline() == "keep\\n":
    store.keep(b"1" * 24, [b"theirs"])
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Another process has begun ONE; call with what it is to do: "keep", or "die"."""
    process = subprocess.Popen(
        (sys.executable, "-c", _BEGIN_AND_WAIT, str(tmp_path / "replies.db")),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"

    def tell(what: str) -> None:
        assert process.stdin is not None
        if what == "die":
            process.kill()
        else:
            process.stdin.write(f"{what}\n")
            process.stdin.flush()

    yield tell
    process.kill()
    process.wait(WAIT_S)
    process.stdin.close()
    process.stdout.close()


@pytest.mark.loopback
def test_what_another_process_executes_is_waited_for(
    tmp_path: Path, elsewhere: Callable[[str], None]
) -> None:
    store = ReplyFile(tmp_path / "replies.db")
    with pytest.raises(OutcomeUnknownError, match="still running"):
        store.begin(ONE, [b"a"], 0.0)
    got: list[list[bytes] | None] = []
    waiting = threading.Thread(target=lambda: got.append(store.begin(ONE, [b"a"], None)))
    waiting.start()
    elsewhere("keep")
    waiting.join(WAIT_S)
    assert got == [[b"theirs"]]
    store.close()


@pytest.mark.loopback
@pytest.mark.parametrize("unfinished", ["repeat", "fail"])
def test_what_a_killed_process_had_begun_is_repeated_or_told_as_asked(
    tmp_path: Path, elsewhere: Callable[[str], None], unfinished: str
) -> None:
    store = ReplyFile(tmp_path / "replies.db", unfinished=unfinished)  # type: ignore[arg-type]
    elsewhere("die")
    if unfinished == "repeat":
        assert store.begin(ONE, [b"a"], None) is None
        store.keep(ONE, [b"ours"])
    else:
        for _ in range(2):
            with pytest.raises(OutcomeUnknownError, match="kept no reply"):
                store.begin(ONE, [b"a"], None)
        store.forget(ONE)
        assert store.begin(ONE, [b"a"], None) is None
    store.close()


def test_a_full_disk_refuses_what_it_cannot_note_and_goes_on_when_it_has_room(tmp_path: Path) -> None:
    store = ReplyFile(tmp_path / "replies.db", unfinished="fail")
    database = store._database
    assert store.begin(ONE, [b"a"], None) is None
    (pages,) = database.execute("PRAGMA page_count").fetchone()
    database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="is full"):
        store.keep(ONE, [b"x" * 100_000])
    with pytest.raises(OutcomeUnknownError, match="kept no reply"):
        store.begin(ONE, [b"a"], None)
    with pytest.raises(sqlite3.OperationalError, match="is full"):
        [store.begin(b"%024d" % number, [b"a"], None) for number in range(10_000)]
    database.execute("PRAGMA max_page_count = 1073741823")
    assert len(store._running) == len(store) - 1
    assert store.begin(TWO, [b"a"], None) is None
    store.keep(TWO, [b"b"])
    assert store.begin(TWO, [b"a"], None) == [b"b"]
    store.close()


def test_a_file_answers_after_a_restart_and_forgets_what_is_old_or_too_much(tmp_path: Path) -> None:
    path = tmp_path / "replies.db"
    store = ReplyFile(path, count_max=500)
    for number in range(1_000):
        identity = b"%024d" % number
        assert store.begin(identity, [b"a"], None) is None
        store.keep(identity, [b"%d" % number])
    assert len(store) == 500
    store.close()
    again = ReplyFile(path)
    assert again.begin(b"%024d" % 999, [b"a"], None) == [b"999"]
    assert again.begin(b"%024d" % 1, [b"a"], None) is None
    again.close()
    brief = ReplyFile(path, keep_s=1e-9)
    assert brief.begin(b"%024d" % 999, [b"a"], None) is None
    brief.close()
    assert [entry.name for entry in tmp_path.glob("*.alive")] == []


def test_a_place_that_cannot_be_written_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot keep replies"):
        ReplyFile(tmp_path / "missing" / "replies.db")
