"""The arbiter's in-sync sets of durable stores: who may change one, and what survives the arbiter."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bstar.errors import ConfigurationError
from bstar.pair.in_sync_file import InSyncFile
from bstar.star.arbiter import Reply, TableFull
from bstar.star.in_sync import InSyncSet, InSyncSets, KeepSets
from bstar.wire.arbiter import (
    Answer,
    Question,
    Role,
    SetAnswer,
    SetClaim,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)

STORE = "0a" * 16
BOTH: list[Role] = ["primary", "backup"]


class Asker:
    """A node's store that asks ``sets``."""

    def __init__(self, sets: InSyncSets, role: Role, pair: str = "p") -> None:
        self.sets, self.role, self.pair, self.number = sets, role, pair, 0
        self.kept = 0

    def ask(
        self,
        epoch: int = 0,
        in_sync: list[Role] | None = None,
        now: float = 0.0,
        *,
        is_forced: bool = False,
        is_held: bool = False,
    ) -> SetAnswer:
        self.number += 1
        claim = SetClaim(STORE, epoch, in_sync or [], is_forced, is_held)
        question = Question("look", self.pair, self.role, "run", self.number, 2_000, claim)
        outputs = self.sets.receive(question, claim, now)
        self.kept += sum(isinstance(output, KeepSets) for output in outputs)
        assert isinstance(outputs[-1], Reply)
        answer = outputs[-1].answer.store
        assert answer is not None
        return answer


def nodes(sets: InSyncSets) -> tuple[Asker, Asker]:
    return Asker(sets, "primary"), Asker(sets, "backup")


def test_a_node_outside_the_set_cannot_go_on_alone() -> None:
    primary, backup = nodes(InSyncSets({}, now=0.0))
    assert primary.ask(1, BOTH).is_granted
    assert primary.ask(1, ["primary"]).is_granted
    refused = backup.ask(2, ["backup"])
    assert (refused.is_granted, refused.epoch, refused.in_sync) == (False, 1, ["primary"])
    assert backup.ask(2, BOTH).is_granted
    assert backup.ask(2, ["backup"]).is_granted


def test_the_leader_of_an_earlier_epoch_is_refused() -> None:
    primary, backup = nodes(InSyncSets({}, now=0.0))
    assert primary.ask(1, BOTH).is_granted
    assert backup.ask(2, BOTH).is_granted
    assert not primary.ask(1, ["primary"]).is_granted
    assert primary.ask(3, ["primary"]).is_granted


def test_a_late_claim_changes_nothing() -> None:
    primary, _ = nodes(InSyncSets({}, now=0.0))
    assert primary.ask(1, ["primary"]).is_granted
    primary.number = 0
    assert not primary.ask(1, BOTH).is_granted
    assert primary.ask().in_sync == ["primary"]


def test_an_operator_overrules_the_set() -> None:
    primary, backup = nodes(InSyncSets({}, now=0.0))
    assert primary.ask(5, ["primary"]).is_granted
    assert backup.ask(2, ["backup"], is_forced=True).is_granted
    assert not primary.ask(5, ["primary"]).is_granted


def test_a_look_changes_nothing() -> None:
    primary, _ = nodes(InSyncSets({}, now=0.0))
    assert primary.ask() == SetAnswer(is_kept=True)
    assert primary.ask(1, BOTH).is_granted
    assert primary.ask().in_sync == ["backup", "primary"]


def test_a_change_is_kept_and_a_repetition_is_not_kept_again() -> None:
    primary, _ = nodes(InSyncSets({}, now=0.0))
    for _ in range(3):
        assert primary.ask(1, ["primary"]).is_granted
    assert primary.kept == 1


def test_a_forgetful_arbiter_waits_for_the_holder_of_the_set() -> None:
    """Without a state directory, for one ttl after its start only a leader that held the set is granted."""
    primary, backup = nodes(InSyncSets(None, now=100.0))
    assert not backup.ask(2, ["backup"], 101.9).is_granted
    assert primary.ask(1, ["primary"], 101.9, is_held=True).is_granted
    assert not backup.ask(2, ["backup"], 103.0).is_granted
    assert not primary.ask(1, ["primary"], 103.0).is_kept
    _, stranger = nodes(InSyncSets(None, now=100.0))
    assert stranger.ask(2, ["backup"], 102.0).is_granted


def test_the_table_is_bounded() -> None:
    sets = InSyncSets({}, now=0.0, stores_max=1)
    assert Asker(sets, "primary", "one").ask(1, BOTH).is_granted
    claim = SetClaim(STORE, 1, BOTH)
    full, reply = sets.receive(Question("look", "two", "primary", "run", 1, 2_000, claim), claim, 0.0)
    assert isinstance(full, TableFull)
    assert isinstance(reply, Reply)
    assert reply.answer.store == SetAnswer(is_kept=True)


def test_a_question_about_a_store_is_as_documented() -> None:
    claim = SetClaim(STORE, 3, ["backup"], is_held=True)
    question = Question("look", "p", "backup", "b1", 7, 2000, claim)
    frames = encode_question(question)
    assert frames[1].endswith(
        b'"store":{"store":"%s","epoch":3,"in_sync":["backup"],"is_held":true}}' % STORE.encode()
    )
    assert decode_question(frames) == question
    answer = Answer("b1", 7, store=SetAnswer(True, 3, ["backup"], True))
    assert decode_answer(encode_answer(answer)) == answer


def test_sets_survive_the_arbiter(tmp_path: Path) -> None:
    file = InSyncFile(tmp_path)
    sets = {"p/" + STORE: InSyncSet(3, 7, ("backup",))}
    assert file.keep(sets)
    file.close()
    again = InSyncFile(tmp_path)
    assert again.sets == sets
    with pytest.raises(ConfigurationError, match="another process uses"):
        InSyncFile(tmp_path)
    again.close()


def test_a_damaged_file_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "in-sync.json").write_bytes(b'{"p/0a": 1}')
    with pytest.raises(ConfigurationError, match="is damaged"):
        InSyncFile(tmp_path)
    assert (tmp_path / "in-sync.json").read_bytes() == b'{"p/0a": 1}'


def test_what_cannot_be_stored_is_not_granted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = InSyncFile(tmp_path)

    def fails(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("bstar.pair.in_sync_file.write_whole", fails)
        assert not file.keep({})
    assert file.keep({})
    assert msgspec.json.decode((tmp_path / "in-sync.json").read_bytes()) == {}
    file.close()
