"""Runs and the pointer: a reader sees one whole run, a second writer is refused, files stay while needed."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pytest

from bstar.errors import ConfigurationError
from bstar_pipeline import commits
from bstar_pipeline.commits import File, Folder, Manifest

DAY = dt.date(2026, 11, 2)
NOON = dt.datetime(2026, 11, 2, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


def manifest(run: str, before: str = "", at: dt.datetime = NOON, *paths: str) -> Manifest:
    return Manifest(run, before, at, {"gold.audit": [File(DAY, "orders", path) for path in paths]})


def name(hours: float) -> str:
    return commits.new_run(NOON + hours * HOUR)


def put(root: Path, run: str, file: str) -> str:
    path = f"{commits.folder_of(run)}/{file}"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(file)
    return path


def test_a_reader_that_opened_the_tables_sees_that_run_whatever_is_committed(tmp_path: Path) -> None:
    store, root = Folder(tmp_path), str(tmp_path)
    one, other = name(0), name(1)
    commits.commit(store, root, manifest(one, "", NOON, put(tmp_path, one, "a")))
    opened = commits.open_snapshot(store, root)
    # By reference: what the run before wrote stays where it is.
    paths = (put(tmp_path, other, "b"), f"{commits.folder_of(one)}/a")
    commits.commit(store, root, manifest(other, one, NOON + HOUR, *paths))
    assert [Path(path).read_text() for path in opened.files("gold.audit")] == ["a"]
    assert [Path(path).read_text() for path in commits.open_snapshot(store, root).files("gold.audit")] == [
        "b",
        "a",
    ]
    assert opened.files("gold.audit", [(DAY, "stock")]) == []
    assert (opened.has("gold.audit"), opened.has("gold.budgets")) == (True, False)


def test_a_run_that_wrote_everything_but_the_pointer_was_never_there(tmp_path: Path) -> None:
    store, root = Folder(tmp_path), str(tmp_path)
    with pytest.raises(ConfigurationError, match=r"no tables below .*bstar pipeline run"):
        commits.open_snapshot(store, root)
    one = name(0)
    commits.commit(store, root, manifest(one, "", NOON, put(tmp_path, one, "a")))
    before = (tmp_path / commits.POINTER).read_bytes()
    killed = name(1)
    put(tmp_path, killed, "b")
    store.put(commits.manifest_of(killed), b"{}")
    assert (tmp_path / commits.POINTER).read_bytes() == before
    assert commits.open_snapshot(store, root).manifest.run == one


def test_the_later_of_two_runs_is_refused_when_it_commits(tmp_path: Path) -> None:
    store, root = Folder(tmp_path), str(tmp_path)
    one, other = name(0), name(1)
    commits.commit(store, root, manifest(one))
    with pytest.raises(ConfigurationError, match=f"meanwhile .{one}.*start it again"):
        commits.commit(store, root, manifest(other))
    assert commits.open_snapshot(store, root).manifest.run == one


HOLDER = """
import sys
from pathlib import Path
from bstar_pipeline.commits import Folder
with Folder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.loopback
def test_a_second_writer_is_refused_until_the_first_one_is_gone_even_by_a_kill(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        with pytest.raises(ConfigurationError, match="another process is writing"), Folder(tmp_path).locked():
            pytest.fail("two hold the lock")
    finally:
        first.kill()
        first.communicate()
    with Folder(tmp_path).locked():
        pass


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"run":', "current.json is damaged"),
        (b'{"run":"\xff","version":1}', "current.json is damaged"),
        (b'{"run":"x","version":99}', "version 99, this program knows 1"),
        (b'{"run":"20261102T120000.000000Z-00"}', "is missing, and current.json names it"),
    ],
)
def test_a_pointer_that_leads_nowhere_is_an_error_that_names_it(
    tmp_path: Path, content: bytes, why: str
) -> None:
    store = Folder(tmp_path)
    store.put(commits.POINTER, content)
    with pytest.raises(ConfigurationError, match=why):
        commits.open_snapshot(store, str(tmp_path))


def test_files_stay_while_a_reader_may_need_them(tmp_path: Path) -> None:
    """Four commits, an hour and a half between them; each file is named by one, or by that and the next."""
    store, root = Folder(tmp_path), str(tmp_path)
    runs = [name(1.5 * number) for number in range(4)]
    own = [put(tmp_path, run, "own") for run in runs]
    for number, run in enumerate(runs):
        before, at = runs[number - 1] if number else "", NOON + 1.5 * number * HOUR
        commits.commit(store, root, manifest(run, before, at, *own[max(0, number - 1) : number + 1]))
    killed, writing = (put(tmp_path, name(hours), "part") for hours in (2, 4.6))
    files = {*own, *map(commits.manifest_of, runs), killed, writing}
    now = NOON + 5 * HOUR
    commits.sweep(store, root, now)
    # The third commit was current until half an hour ago; it names the second's file, nothing the first's.
    gone = {own[0], commits.manifest_of(runs[0]), commits.manifest_of(runs[1]), killed}
    assert {*store.files(commits.RUNS)} == files - gone
    commits.sweep(store, root, now + HOUR)
    gone |= {own[1], commits.manifest_of(runs[2])}
    assert {*store.files(commits.RUNS)} == files - gone
    commits.sweep(store, root, now + 25 * HOUR)
    assert {*store.files(commits.RUNS)} == files - gone - {writing}


def test_a_folder_that_is_empty_goes_with_the_last_file_beside_it(tmp_path: Path) -> None:
    store = Folder(tmp_path)
    path = put(tmp_path, name(0), "deep/er/a")
    (tmp_path / path).parent.with_name("of no row").mkdir()
    assert store.files(commits.RUNS) == [path]
    store.remove([path])
    assert list(tmp_path.iterdir()) == []
    store.remove([path])


@pytest.mark.parametrize(
    ("root", "folder"),
    [
        ("/a b", "/a b"),
        ("a", "a"),
        ("file:/a", "/a"),
        ("file:///a", "/a"),
        ("s3a://b/a", None),
        ("hdfs:/a", None),
    ],
)
def test_a_folder_of_this_machine_is_known_by_its_name(root: str, folder: str | None) -> None:
    assert commits.folder_named(root) == (None if folder is None else Path(folder))
