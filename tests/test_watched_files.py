"""Files that a process reads again when they change: what is a change, and what a broken file leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bstar.errors import ConfigurationError
from bstar.security.files import WatchedFiles, read_small


def read_private(path: Path) -> str:
    text, is_open = read_small(path, 100)
    if is_open:
        raise ConfigurationError(f"{path}: chmod 600")
    return text.decode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "list"
    path.touch(0o600)
    path.write_text("one")
    return path


@pytest.fixture
def watched(path: Path) -> WatchedFiles[str]:
    return WatchedFiles("the list", [path], lambda: read_private(path))


def test_a_mode_that_is_mended_is_a_change(path: Path, watched: WatchedFiles[str]) -> None:
    path.chmod(0o644)
    assert not watched.refresh()
    assert "chmod 600" in watched.error
    path.chmod(0o600)
    assert watched.refresh()
    assert watched.error == ""


def test_a_file_that_is_replaced_is_a_change_although_its_times_are_old(
    path: Path, watched: WatchedFiles[str]
) -> None:
    """As cp -p and tar leave it, with as many bytes as before."""
    other = path.with_name("other")
    other.touch(0o600)
    other.write_text("two")
    found = path.stat()
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)
    assert watched.refresh()
    assert watched.value == "two"


def test_a_file_that_is_gone_keeps_its_value(
    path: Path, watched: WatchedFiles[str], caplog: pytest.LogCaptureFixture
) -> None:
    path.unlink()
    for _ in range(3):
        watched.refresh()
    assert watched.value == "one"
    assert caplog.text.count("cannot be used") == 1, "one change is logged once"


def test_a_change_that_the_system_could_not_read_is_read_later(
    path: Path, watched: WatchedFiles[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Path, mode: str) -> None:
        raise OSError(24, "Too many open files")

    path.write_text("other")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail)
        for _ in range(3):
            assert not watched.refresh()
    assert caplog.text.count("cannot be used") == 1
    assert watched.refresh()
    assert (watched.value, watched.error) == ("other", "")


def test_files_that_belong_together_are_read_when_one_of_them_changes(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_text("1")
    files = WatchedFiles("two files", paths, lambda: [path.read_text() for path in paths])
    assert not files.refresh()
    paths[1].write_text("22")
    assert files.refresh()
    assert files.value == ["1", "22"]
    assert not files.refresh()
