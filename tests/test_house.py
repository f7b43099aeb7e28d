"""The packages themselves: exported names exist, imports load only what they need, parts keep their size."""

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

LINES_OF_A_FILE_MAX = 450
ATTRIBUTES_OF_A_CLASS_MAX = 15
# Without its docstring, which of a command is the help page.
LINES_OF_A_FUNCTION_MAX = 60

# Each exception from a limit and its reason. The key is a module, or a module and its class or function.
EXCEPTIONS = {
    "bstar.records.broker:Request": "the fields of a journal record",
    "bstar.records.broker:Load": "the fields of a journal record",
    "bstar.settings.relations:node_problems": "one `if` for each relation of two keys",
    "bstar.settings.schema:Settings": "the sections of the configuration, and its keys beside them",
    "bstar.star.rules:Facts": "the facts that a rule may name",
    "bstar.wire.peer:_Detail": "the fields of a message",
    "bstar.wire.peer:PeerState": "the fields of a message",
    "bstar_broker.core.ledger:Ledger": "one attribute for each table of the broker",
    "bstar_broker.core.records:Accepted": "the fields of one request on its way",
    "bstar_broker.core.records:Bundle": "the fields of one bundle on its way",
    "bstar_broker.core.records:WorkerRecord": "the fields of one worker: a dispatch reads nine of them",
    "bstar_broker.core.settings:BrokerSettings": "one field for each key",
    "bstar_broker.core.snapshot:ServiceState": "one field for each figure of the status page",
    "bstar_broker.core.snapshot:PairState": "one field for each figure of the status page",
    "bstar_broker.core.snapshot:StoreState": "one field for each figure of the status page",
    "bstar_broker.store.core.records:Record": "the fields of one durable request",
    "bstar_broker.server:BrokerServer": "the sockets and the parts of one node",
    "bstar_client.core.calls:Call": "the fields of one request on its way",
    "bstar_client.core.worker_dialects:Job": "the fields of one request on its way",
    "bstar_client.worker:BaseWorker.__init__": "a public constructor: keyword options and their meaning",
    "bstar_pipeline.report.content:Incident": "what the report's template shows",
    "bstar_pipeline.report.content:Content": "what the report's template shows",
    "bstar_pipeline.synth.process:Process": "the fields of one process",
    "bstar_pipeline.synth.settings:SynthSettings": "one field for each option",
    "bstar_pipeline.synth.timeline:Timeline": "the state of a pair, and what is read from it afterwards",
    "bstar_testing.pairs:Pair": "the processes of one pair, and what each was told",
    "bstar_cli.views:PairView": "one field for each figure that commands read of a node",
    "bstar_cli.bench.results:Row": "one field for each column",
}


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
    ],
)
def test_importing_a_package_loads_no_more_than_it_needs(package: str, must_not_load: list[str]) -> None:
    program = f"import sys, {package}; print(*(set(sys.modules) & set({must_not_load!r})))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


def _attributes(body: ast.ClassDef) -> set[str]:
    """The fields that a class declares and what its methods set on ``self``; no class variables."""
    found = {
        field.target.id
        for field in body.body
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and "ClassVar" not in ast.unparse(field.annotation)
    }
    return found | {
        node.attr
        for node in ast.walk(body)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    end, first = function.end_lineno, function.body[0]
    assert end is not None
    has_docstring = ast.get_docstring(function) is not None
    about = 0 if not has_docstring or first.end_lineno is None else first.end_lineno - first.lineno + 1
    return end - function.lineno + 1 - about


def _oversized(tree: ast.AST, prefix: str) -> Iterator[str]:
    """The names of classes and functions in ``tree`` that exceed a limit, those inside others included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{node.name}"
            if isinstance(node, ast.ClassDef):
                is_large = len(_attributes(node)) > ATTRIBUTES_OF_A_CLASS_MAX
            else:
                is_large = _code_lines(node) > LINES_OF_A_FUNCTION_MAX
            if is_large:
                yield name
            yield from _oversized(node, f"{name}.")
        else:
            yield from _oversized(node, prefix)


def test_files_classes_and_functions_stay_within_their_limits() -> None:
    oversized = set()
    for folder, package in zip(FOLDERS, PACKAGES, strict=True):
        for path in (ROOT / folder / package).rglob("*.py"):
            module = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
            source = path.read_text()
            if source.count("\n") > LINES_OF_A_FILE_MAX:
                oversized.add(module)
            oversized.update(_oversized(ast.parse(source), f"{module}:"))
    unlisted, unneeded = sorted(oversized - EXCEPTIONS.keys()), sorted(EXCEPTIONS.keys() - oversized)
    assert not unlisted, f"split these, or give EXCEPTIONS their reasons: {unlisted}"
    assert not unneeded, f"within their limits, so take them out of EXCEPTIONS: {unneeded}"


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
