"""The catalogue of mutants fits the product, and its runner tells a caught one from one that survived.

``make mutants`` runs the whole catalogue; here each entry is only looked at.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mutants import __main__ as command
from mutants.catalogue import CATALOGUE, Mutant, faults_of
from mutants.run import Verdict, judge_all

HERE = "tests/test_mutants.py"


@pytest.mark.parametrize("mutant", CATALOGUE, ids=lambda mutant: mutant.name)
def test_the_entry_can_be_run(mutant: Mutant) -> None:
    assert list(faults_of(mutant)) == []


def test_names_are_unique() -> None:
    names = [mutant.name for mutant in CATALOGUE]
    assert len(set(names)) == len(names)


def test_few_are_excused() -> None:
    assert sum(bool(mutant.equivalent) for mutant in CATALOGUE) <= command.SURVIVORS_MAX


def test_a_wrong_entry_is_named(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text("x = 1\nx = 1\n")
    entry = Mutant("m", "twice.py", "x = 1", "x = 1", ("tests/none.py", "twice.py::test_y"))

    assert list(faults_of(entry, tmp_path)) == [
        "old occurs 2 times in twice.py, not once: 'x = 1'",
        "new equals old",
        "tests/none.py does not exist",
        "twice.py has no test test_y",
    ]


def test_a_survivor_needs_a_reason_and_a_reason_a_survivor() -> None:
    plain = Mutant("m", "f", "a", "b", ("t",))
    excused = Mutant("m", "f", "a", "b", ("t",), equivalent="it cannot be seen")

    assert [Verdict(plain, state, "").is_fault for state in ("caught", "survived", "broken")] == [
        False,
        True,
        True,
    ]
    assert [Verdict(excused, state, "").is_fault for state in ("caught", "survived", "broken")] == [
        True,
        False,
        True,
    ]


@pytest.mark.loopback
def test_verdicts_are_what_pytest_says() -> None:
    epochs = "bstar/bstar/star/epochs.py"
    judged = ("tests/test_star_scripts.py",)
    mutants = [
        Mutant("caught", epochs, "epoch = seen + 1", "epoch = seen", judged),
        Mutant("survived", epochs, "The primary's epochs are odd", "Odd are the primary's epochs", judged),
        Mutant("broken", epochs, "epoch = seen + 1", "epoch = (", judged),
    ]

    states = {verdict.mutant.name: verdict.state for verdict in judge_all(mutants, 1)}

    assert states == {"caught": "caught", "survived": "survived", "broken": "broken"}


@pytest.mark.loopback
def test_tests_that_fail_by_themselves_prove_nothing() -> None:
    mutant = Mutant("m", "bstar/bstar/star/epochs.py", "a", "b", (f"{HERE}::test_that_is_not_there",))
    with pytest.raises(RuntimeError, match="without any mutant the tests do not pass"):
        list(judge_all([mutant], 1))
