"""The packages themselves: exported names exist, imports load only what they need, functions stay short."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ["bstar", "bstar_broker", "bstar_client", "bstar_pipeline", "bstar_testing", "bstar_cli"]
ROOT = Path(__file__).parent.parent
FOLDERS = ["bstar", "broker", "client", "pipeline", "testing", "cli"]

# Without its docstring, which of a command is the help page.
LINES_OF_A_FUNCTION_MAX = 60

# Each exception and its reason. The key is a module and its function.
EXCEPTIONS = {"bstar_client.workers.worker:BaseWorker.__init__": "a public constructor: keyword options"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_resolves(package: str) -> None:
    module = import_module(package)
    missing = [name for name in module.__all__ if not hasattr(module, name)]
    assert missing == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_says_what_it_is_for(package: str) -> None:
    assert import_module(package).__doc__


def test_every_error_class_is_exported_at_the_top() -> None:
    errors, top = import_module("bstar.errors"), import_module("bstar")
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {name for name in classes if not name.startswith("_")} <= set(top.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Unheard"):
        _ = import_module("bstar").Unheard


@pytest.mark.loopback
@pytest.mark.parametrize(
    ("package", "must_not_load"),
    [
        ("bstar", ["zmq", "transitions", "yaml", "prometheus_client", "asyncio"]),
        ("bstar_client", ["zmq", "asyncio"]),
        ("bstar_client.sync.client", ["asyncio", "sqlite3", "bstar.journal", "bstar_client.sync.worker"]),
        ("bstar_client.aio.worker", ["transitions", "yaml", "prometheus_client", "pyspark", "sqlite3"]),
        ("bstar_pipeline", ["pyspark"]),
        ("bstar_testing", ["zmq", "bstar_broker", "bstar_client", "pytest"]),
        ("bstar_testing.memory.pair", ["yaml", "prometheus_client", "bstar.settings", "pytest"]),
    ],
)
def test_importing_a_package_loads_no_more_than_it_needs(package: str, must_not_load: list[str]) -> None:
    program = f"import sys, {package}; print(*(set(sys.modules) & set({must_not_load!r})))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    end, first = function.end_lineno, function.body[0]
    assert end is not None
    has_docstring = ast.get_docstring(function) is not None
    about = 0 if not has_docstring or first.end_lineno is None else first.end_lineno - first.lineno + 1
    return end - function.lineno + 1 - about


def _long_functions(tree: ast.AST, prefix: str) -> Iterator[str]:
    """The names of functions in ``tree`` that exceed the limit, those inside others included."""
    for node in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{node.name}"
            if not isinstance(node, ast.ClassDef) and _code_lines(node) > LINES_OF_A_FUNCTION_MAX:
                yield name
            name += "."
        yield from _long_functions(node, name)


def test_functions_stay_within_their_limit() -> None:
    long: set[str] = set()
    for folder, package in zip(FOLDERS, PACKAGES, strict=True):
        for path in (ROOT / folder / package).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
            long.update(_long_functions(ast.parse(path.read_text()), f"{module}:"))
    unlisted, unneeded = sorted(long - EXCEPTIONS.keys()), sorted(EXCEPTIONS.keys() - long)
    assert not unlisted, f"shorten these, or give EXCEPTIONS their reasons: {unlisted}"
    assert not unneeded, f"within the limit, so take them out of EXCEPTIONS: {unneeded}"


@pytest.mark.loopback
def test_every_exception_from_ruffs_counts_is_needed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    exceptions = settings["per-file-ignores"].items()
    listed = {(path, rule) for path, rules in exceptions for rule in rules if rule.startswith("PLR09")}
    options = ["--select=PLR09", "--config=lint.per-file-ignores={}", "--output-format=json"]
    command = [sys.executable, "-m", "ruff", "check", *options]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    needed = {(str(Path(each["filename"]).relative_to(ROOT)), each["code"]) for each in json.loads(told)}
    unneeded = sorted(listed - needed)
    assert not unneeded, f"not exceeded, so take them out of pyproject.toml: {unneeded}"


def test_no_frame_of_a_window_begins_anew_at_every_row() -> None:
    """Spark adds up such a frame again for each row: of a day's seconds, four thousand million times."""
    for path in (ROOT / "pipeline" / "bstar_pipeline").rglob("*.py"):
        found = re.findall(r"(?:rows|range)Between\((.*?), Window\.unboundedFollowing\)", path.read_text())
        assert set(found) <= {"Window.unboundedPreceding"}, path
