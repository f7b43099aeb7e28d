"""The generated files: what the code says is what they hold, and one command writes and checks them."""

from pathlib import Path

import pytest

from bstar.star import RULES
from bstar.star.rules import Effect, Event, State
from bstar_pipeline.tables import TABLES
from pages import rules, tables
from pages.__main__ import FILES, PARTS, main
from pages.markdown import BEGIN, END, replace

ROOT = Path(__file__).parents[1]


@pytest.mark.loopback
def test_the_generated_files_are_what_the_code_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(ROOT)]) == 0, capsys.readouterr().err


@pytest.mark.loopback
def test_files_that_differ_are_found_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs").mkdir()
    for name in PARTS:
        (tmp_path / name).write_text(f"before\n{BEGIN}\nobsolete\n{END}\nafter\n", encoding="utf-8")
    assert main(["--check", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert all(name in told for name in (*FILES, *PARTS))
    assert main(["--write", str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    for name in PARTS:
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert (text.startswith("before\n"), text.endswith("\nafter\n")) == (True, True)
        assert "obsolete" not in text


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="markers are missing"):
        replace("nothing here", "part")


def test_the_pages_have_every_rule_and_every_table() -> None:
    page = rules.generate()
    claims = [rule for rule in RULES if rule.effect is Effect.CLAIM]
    assert all(rule.reason in page for rule in RULES if rule not in claims)
    # One sentence says these: each stands before a rule that begins to serve.
    assert {(rule.state, rule.event) for rule in claims} == {
        (rule.state, rule.event)
        for rule in RULES
        if rule.next_state is State.ACTIVE is not rule.state and rule.event is not Event.MAJORITY_WON
    }
    assert f"a rule that begins to serve keeps the state and {Effect.CLAIM.value}" in " ".join(page.split())
    assert all(f"`{name}`" in tables.generate() for name in TABLES)
