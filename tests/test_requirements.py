"""Every numbered requirement has a test or a script that names it, and every name is one of the list."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from support.golden import GOLDEN, REQUIREMENT
from support.requirements import REQUIREMENTS

TESTS = Path(__file__).parent


@functools.cache
def named_requirements() -> frozenset[tuple[str, str]]:
    """The id in each `requirement("…")` of the test modules and in the scripts, and the file's name.

    Read from the source, so that the answer does not depend on which tests were selected.
    """
    found = set()
    for path in sorted(TESTS.glob("test_*.py")):
        source = path.read_text()
        # Most modules name none, and parsing takes its time.
        for node in ast.walk(ast.parse(source)) if "requirement(" in source else ():
            match node:
                case ast.Call(
                    func=ast.Name(id="requirement") | ast.Attribute(attr="requirement"),
                    args=[ast.Constant(value=str(name))],
                ):
                    found.add((name, path.name))
    for path in sorted(GOLDEN.glob("*.txt")):
        found |= {(name, path.name) for name in REQUIREMENT.findall(path.read_text("utf-8"))}
    return frozenset(found)


@pytest.mark.parametrize("requirement_id", REQUIREMENTS)
def test_the_requirement_has_a_test(requirement_id: str) -> None:
    assert requirement_id in {name for name, _ in named_requirements()}, (
        f"no test for {requirement_id}: {REQUIREMENTS[requirement_id]}"
    )


def test_every_name_is_in_the_list() -> None:
    families = tuple({requirement_id.split("-")[0] + "-" for requirement_id in REQUIREMENTS})
    unknown = {
        (name, module)
        for name, module in named_requirements()
        if name.startswith(families) and name not in REQUIREMENTS
    }
    assert unknown == set()


def test_names_have_one_shape() -> None:
    """A misspelt family would go unnoticed otherwise."""
    odd = {
        (name, module)
        for name, module in named_requirements()
        if not re.fullmatch(r"(MDP[12]|MMI|TSP|BST|BSN|EMQ|PZQ|LPP|SPP|PPP|FL[12P])-[A-Z]-\d\d", name)
    }
    assert odd == set()
