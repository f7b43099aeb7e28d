"""YAML files as settings are read from them: which values, in which lines, and all that is wrong.

A key that stands twice is an error instead of silently the last one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from bstar.errors import ConfigurationError
from bstar.settings.yaml_loader import BoundError, Loader

# A configuration is a page or two; whatever is larger is some other file.
FILE_BYTES_MAX = 1 << 20


class Problems:
    """What is wrong with a configuration."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def problem(self, where: str, path: str, text: str) -> None:
        """One more: the file and line, the key's path if any, what is wrong and what to do."""
        self.problems.append(f"{where}: {path}: {text}" if path else f"{where}: {text}")

    def raise_all(self) -> None:
        """ConfigurationError with all of them, if there are any."""
        if len(self.problems) == 1:
            raise ConfigurationError(self.problems[0])
        if self.problems:
            listed = "\n".join(f"  {problem}" for problem in self.problems)
            raise ConfigurationError(f"{len(self.problems)} problems in the configuration:\n{listed}")


def read_document(
    path: Path, problems: Problems, depth: int = 2
) -> tuple[Mapping[Any, object], dict[str, int]]:
    """The keys of a file with their values, and the line of each by its path, ``depth`` levels deep.

    Raises ConfigurationError for what cannot be read; a key that stands twice is added to ``problems``.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{path}: is larger than {FILE_BYTES_MAX} bytes, which no configuration is")
    lines: dict[str, int] = {}
    try:
        loader = Loader(content)
        try:
            node = loader.get_single_node()
            if node is None:
                return {}, {}
            _note_keys(node, "", str(path), lines, problems, depth)
            document = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        wrong = "cannot be used" if isinstance(error, BoundError) else "is no YAML"
        raise ConfigurationError(f"{where}: {wrong}: {error.problem or error.context}") from error
    except (
        yaml.YAMLError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        # PyYAML lets errors of its scalar constructors through as they are (!!int of a word is a ValueError).
        raise ConfigurationError(f"{path}: is no YAML: {type(error).__name__}: {error}") from error
    if document is None:
        return {}, lines
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: must hold keys with values, not {kind(document)}")
    return document, lines


def locator(source: str, lines: Mapping[str, int]) -> Callable[[str], str]:
    """The place of a key, by its path: file and line, or the file alone."""
    return lambda key: f"{source}:{lines[key]}" if key in lines else source


def _note_keys(
    node: yaml.Node, prefix: str, source: str, lines: dict[str, int], problems: Problems, depth: int
) -> None:
    """Remember in which line each key stands; one that stands twice is a problem."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        path, line = f"{prefix}{key.value}", key.start_mark.line + 1
        if path in lines and key.tag != "tag:yaml.org,2002:merge":
            problems.problem(f"{source}:{line}", path, f"stands here a second time, after line {lines[path]}")
        lines[path] = line
        if depth > 1:
            _note_keys(value, f"{path}.", source, lines, problems, depth - 1)


def kind(value: object) -> str:
    """What a value is that should have been something else."""
    if value is None:
        return "nothing"
    return shown(value) if isinstance(value, (list, tuple, set, Mapping)) else f"the value {shown(value)}"


def shown(value: object) -> str:
    """A value in a message. Of a group only its kind: with YAML's aliases a small one can be endless."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a group of keys"
    if isinstance(value, (list, tuple, set)):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
