"""The file in which a node keeps its epoch: what survives, what is refused, what is tried again."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bstar.errors import ConfigurationError
from bstar.host.whole_file import write_whole
from bstar.pair import epoch_file
from bstar.pair.epoch_file import EpochFile, EpochKeeper
from bstar.wire.epochs import EPOCH_MAX
from support.waiting import LIMIT_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epoch_file, "_PATIENCE_S", LIMIT_S)


@pytest.fixture
def file(tmp_path: Path) -> EpochFile:
    return EpochFile(tmp_path)


@pytest.mark.parametrize("epoch", [0, 1, 10**18 - 1, 10**18, 10**18 + 1, EPOCH_MAX])
def test_every_epoch_that_can_be_taken_is_read_back(file: EpochFile, epoch: int) -> None:
    file.save(epoch)
    assert file.load() == epoch


@pytest.mark.parametrize("text", ["seven", "", "-1", "1.5", f"{EPOCH_MAX + 1}", "7" * 5_000, "1\n2"])
def test_what_is_no_epoch_is_refused_with_what_to_do(file: EpochFile, text: str) -> None:
    file.path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"state_dir: .*epoch holds .*bstar epoch reset stores 0"):
        file.load()


def test_looking_whether_the_directory_can_be_written_leaves_it_as_it_was(file: EpochFile) -> None:
    file.save(7)
    assert file.load() == 7
    assert [path.name for path in file.path.parent.iterdir()] == ["epoch"]


def test_a_directory_that_cannot_be_made_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"state_dir: cannot write to .*name a directory"):
        EpochFile(tmp_path / "file" / "state").load()


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_directory_that_cannot_be_written_to_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Full, read-only or of somebody else: what fails differs, and the sentence is the same."""

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os if call == "fsync" else Path, call, fails)
    with pytest.raises(ConfigurationError, match=r"cannot write to .*: No space left on device; name"):
        EpochFile(tmp_path).load()


# --- who may use it ---------------------------------------------------------------------------------------


def test_two_nodes_cannot_share_a_directory(file: EpochFile) -> None:
    first, second = EpochKeeper(file), EpochKeeper(EpochFile(file.path.parent))
    assert first.open() == 0
    with pytest.raises(ConfigurationError, match=r"state_dir: another process uses .* directory of"):
        second.open()
    first.close()
    first.close()
    assert second.open() == 0
    second.close()


def test_a_file_system_without_locks_is_used_with_a_warning(
    file: EpochFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("bstar.host.whole_file.fcntl.flock", fails)
    file.save(7)
    assert EpochKeeper(file).open() == 7
    assert "cannot be locked: [Errno" in caplog.text


# --- what a power cut leaves -----------------------------------------------------------------------------


class Disk:
    """The order of what reaches the kernel: which file is synced, and which takes another's name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, ...]] = []
        sync, replace = os.fsync, Path.replace

        def fsync(descriptor: int) -> None:
            path = Path(f"/proc/self/fd/{descriptor}").readlink()
            text = "" if path.is_dir() else path.read_text()
            self.calls.append(("sync", "folder" if path.is_dir() else path.name, text))
            sync(descriptor)

        def rename(path: Path, target: Path) -> Path:
            self.calls.append(("rename", path.name, target.name))
            return replace(path, target)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(Path, "replace", rename)


def test_a_power_cut_at_any_moment_leaves_the_old_epoch_or_the_new_one_whole(
    file: EpochFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file is whole and on the disk before it takes the name; then the name is on the disk."""
    file.save(7)
    disk = Disk(monkeypatch)
    file.save(8)
    assert disk.calls == [
        ("sync", "epoch.new", "8\n"),
        ("rename", "epoch.new", "epoch"),
        ("sync", "folder", ""),
    ]


def test_the_old_epoch_is_there_until_the_new_one_is(
    file: EpochFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.save(7)
    seen: list[str] = []
    sync, replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        seen.append(file.path.read_text())
        sync(descriptor)

    def rename(path: Path, target: Path) -> Path:
        seen.append(file.path.read_text())
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    file.save(8)
    assert seen == ["7\n", "7\n", "8\n"], "when the new one is synced, when it takes the name, and then"


# --- what fails while the node serves ------------------------------------------------------------------


def broken(file: EpochFile) -> Callable[[], None]:
    """Nothing can be stored until the returned function is called."""
    obstacle = file.path.with_name("epoch.new")
    obstacle.mkdir()
    return obstacle.rmdir


def test_what_could_not_be_stored_is_tried_again_until_it_is(file: EpochFile) -> None:
    keeper = EpochKeeper(file)
    mend = broken(file)
    keeper.keep(3, 0.0)
    assert keeper.error == "Is a directory"
    keeper.look(1.0)
    assert not file.path.exists()
    mend()
    keeper.look(2.0)
    assert keeper.error == ""
    assert file.load() == 3


def test_a_disk_that_hangs_holds_up_nobody_and_what_it_lacks_is_stored_afterwards(
    file: EpochFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch_file, "_PATIENCE_S", 0.0)
    answers, is_there = threading.Event(), threading.Event()

    def write(path: Path, content: bytes) -> None:
        assert answers.wait(LIMIT_S)
        write_whole(path, content)

    monkeypatch.setattr(epoch_file, "write_whole", write)
    keeper = EpochKeeper(file)
    keeper.keep(3, 0.0)
    keeper.look(4.9)
    assert keeper.error == ""
    keeper.look(5.0)
    assert keeper.error == "the disk does not answer"
    keeper.keep(4, 6.0)
    keeper.write(is_there.set, 6.0)
    answers.set()
    assert is_there.wait(LIMIT_S)
    assert (keeper.error, file.read()) == ("", 4)
    keeper.close()


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    file = EpochFile(tmp_path / "var" / "state")
    keeper = EpochKeeper(file)
    assert file.load() == 0
    file.path.parent.rmdir()
    file.path.parent.parent.rmdir()
    file.path.parent.parent.write_text("in the way")
    keeper.keep(3, 0.0)
    assert keeper.error
    file.path.parent.parent.unlink()
    keeper.look(1.0)
    assert keeper.error == ""
    assert file.load() == 3


def test_a_later_epoch_is_tried_instead_of_an_earlier_one(file: EpochFile) -> None:
    keeper = EpochKeeper(file)
    mend = broken(file)
    keeper.keep(3, 0.0)
    keeper.keep(5, 0.5)
    mend()
    keeper.look(1.0)
    assert file.load() == 5


def test_an_epoch_that_is_stored_is_not_written_again(file: EpochFile) -> None:
    keeper = EpochKeeper(file)
    assert keeper.open() == 0
    keeper.keep(3, 0.0)
    before = file.path.stat()
    keeper.look(1.0)
    assert os.path.samestat(before, file.path.stat())
    keeper.close()


def test_a_node_without_an_epoch_writes_none(file: EpochFile) -> None:
    keeper = EpochKeeper(file)
    assert keeper.open() == 0
    keeper.look(1.0)
    assert not file.path.exists()
    keeper.close()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_was_removed_under_a_running_node_is_there_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    """The next activation found it, and a restart before that forgot the epoch."""
    file = EpochFile(tmp_path / "state")
    file.save(3)
    keeper, other = EpochKeeper(file), EpochKeeper(EpochFile(tmp_path / "state"))
    assert keeper.open() == 3
    if what == "folder":
        shutil.rmtree(tmp_path / "state")
    else:
        file.path.unlink()
    keeper.look(1.0)
    assert (file.read(), keeper.error) == (3, "")
    assert "was missing: it is there again, with epoch 3" in caplog.text
    with pytest.raises(ConfigurationError, match="another process uses"):
        other.open()
    keeper.close()


def test_a_folder_that_another_process_took_meanwhile_is_left_to_it(tmp_path: Path) -> None:
    keeper, other = EpochKeeper(EpochFile(tmp_path / "state")), EpochKeeper(EpochFile(tmp_path / "state"))
    keeper.open()
    keeper.keep(3, 0.0)
    shutil.rmtree(tmp_path / "state")
    assert other.open() == 0
    keeper.look(1.0)
    assert "another process" in keeper.error
    assert not other.file.path.exists()
    other.close()
    keeper.look(2.0)
    assert (keeper.error, keeper.file.read()) == ("", 3)
    keeper.close()


def test_a_folder_that_becomes_read_only_is_noticed_before_the_next_epoch(
    file: EpochFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.save(3)
    keeper = EpochKeeper(file)
    assert keeper.open() == 3

    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        patch.setattr(Path, "open", fails)
        keeper.look(1.0)
        assert keeper.error == "Read-only file system"
    keeper.look(2.0)
    assert keeper.error == ""
    keeper.close()


def test_a_failure_is_told_at_once_and_each_minute_and_so_is_its_end(
    file: EpochFile, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = EpochKeeper(file)
    mend = broken(file)
    with caplog.at_level(logging.INFO, "bstar.pair"):
        keeper.keep(3, 100.0)
        for second in range(1, 121):
            keeper.look(100.0 + second)
        mend()
        keeper.look(230.0)
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR", "ERROR", "WARNING"]
    assert "epoch 3 could not be stored" in caplog.messages[0]
    assert "is stored in" in caplog.messages[-1]
