"""Small configuration files that would take minutes to read: each is refused with the line where it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from bstar.errors import ConfigurationError
from bstar.settings import load, load_fleet
from bstar.settings.principals import load_principals
from bstar.settings.yaml_loader import NODES_MAX

HEAD = """\
role: primary
endpoints:
  clients: tcp://127.0.0.1:5001
  state: tcp://127.0.0.1:5003
  peer_state: tcp://127.0.0.1:5004
"""
TOO_MANY_MERGED = f"cannot be used: its merge keys (<<) make more than {NODES_MAX} keys"
TOO_LONG = "cannot be used: no number here has more than 100 characters"


def merges(lines: int, each: int) -> str:
    """A mapping of ``each`` keys, and then mappings that merge the one before so many times."""
    first = ", ".join(f"k{number}: 1" for number in range(each))
    text = f"x0: &x0 {{{first}}}\n"
    for number in range(1, lines):
        again = ", ".join([f"*x{number - 1}"] * each)
        text += f"x{number}: &x{number} {{<<: [{again}]}}\n"
    return text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (merges(10, 9), f"node.yaml:10: {TOO_MANY_MERGED}"),
        (merges(40, 2), f"node.yaml:18: {TOO_MANY_MERGED}"),
        (
            "x: [" + "1," * 2 * NODES_MAX + "]",
            f"node.yaml:6: cannot be used: it has more than {NODES_MAX} keys",
        ),
        ("x: 1" + ":1" * 100_000, f"node.yaml:6: {TOO_LONG}"),
        ("x: " + "9" * 100_000 + ".5", f"node.yaml:6: {TOO_LONG}"),
        ("x: 0x" + "9" * 100_000, f"node.yaml:6: {TOO_LONG}"),
    ],
    ids=["ten lines of nine", "forty lines of two", "values", "base 60", "fraction", "base 16"],
)
def test_a_file_that_would_take_for_ever_is_refused_with_its_line(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(HEAD + content)
    for read in (lambda: load(path, environ={}), lambda: load_fleet(path)):
        with pytest.raises(ConfigurationError) as caught:
            read()
        assert said.replace("node.yaml", str(path)) in str(caught.value)


@pytest.mark.parametrize("text", ["\\ud800", "\\0"])
def test_a_text_that_no_file_and_no_message_can_have_is_refused_with_its_line(
    tmp_path: Path, text: str
) -> None:
    """A node reads its list of principals again while it runs, and must not end by it."""
    path = tmp_path / "principals.yaml"
    path.write_text(f"principals:\n  shop: {{keys: ['{'x' * 40}'], calls: [\"{text}\"]}}\n")
    with pytest.raises(ConfigurationError, match=f"{path}:2: .*surrogate"):
        load_principals(path)


def test_merge_keys_as_somebody_would_write_them_are_read(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(HEAD + "limits: &limits {deliveries_max: 7}\njournal: {<<: *limits}\n")
    with pytest.raises(ConfigurationError) as caught:
        load(path, environ={})
    assert "journal.deliveries_max: unknown key" in str(caught.value), "so it was merged"


def test_a_mapping_that_merges_itself_is_read(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(HEAD + "log: &log\n  <<: *log\n  level: debug\n")
    assert load(path, environ={}).log.level == "debug"
