"""From a file, the environment and options to one ``Settings``, or to one error that tells all that is wrong.

Later wins: file, then ``BSTAR_…`` variables, then options. A variable is the dotted path in capitals with
``__`` for the dot: ``BSTAR_ENDPOINTS__CLIENTS``. Texts from variables and options are read as the key's type;
in the file a value must already be of it. YAML is read by the safe loader with two deviations: a key that
stands twice is an error instead of silently the last one, and dates stay texts.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from bstar.errors import ConfigurationError
from bstar.settings.relations import node_problems
from bstar.settings.sample import sample_values
from bstar.settings.schema import FIELDS, PROFILES, RESERVED_VARIABLES, SECTIONS, Field, Settings

__all__ = ["from_mapping", "load", "variable_of"]

PREFIX = "BSTAR_"

# A configuration is a page or two; whatever is larger is some other file.
FILE_BYTES_MAX = 1 << 20

# A variable or option with one of these texts sets a key that may be null to null.
_NULL_TEXTS = ("", "null")


class _Setting(msgspec.Struct, frozen=True):
    """A value that somebody gave, and where."""

    value: object
    where: str
    is_text: bool = False  # from a variable or an option: "0.5" may stand for 0.5


class _Given:
    """What has been said so far, and what was wrong with it."""

    def __init__(self) -> None:
        self.settings: dict[str, _Setting] = {}
        self.problems: list[str] = []

    def add(self, path: str, setting: _Setting) -> None:
        self.settings[path] = setting

    def problem(self, where: str, path: str, text: str) -> None:
        self.problems.append(f"{where}: {path}: {text}" if path else f"{where}: {text}")


def variable_of(path: str) -> str:
    """The environment variable that sets a key."""
    return PREFIX + path.upper().replace(".", "__")


def load(
    path: str | os.PathLike[str] | None,
    *,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, object] | None = None,
) -> Settings:
    """Read a node's settings.

    ``path`` is a YAML file, or None when variables and options say everything. ``environ`` is the process's
    environment unless given. ``options`` are explicit overrides by dotted path. Raises ConfigurationError
    naming all that is wrong.
    """
    given = _Given()
    source = "configuration"
    if path is not None:
        source = os.fspath(path)
        _read_file(Path(path), given)
    _read_environment(os.environ if environ is None else environ, given)
    _read_options(options or {}, given)
    return _build(given, source)


def from_mapping(mapping: Mapping[str, object], *, source: str = "configuration") -> Settings:
    """Settings from nested mappings as YAML would hold them. Raises ConfigurationError like ``load``."""
    given = _Given()
    _read_mapping(mapping, source, {}, given)
    return _build(given, source)


class _Loader(yaml.SafeLoader):
    """The safe loader, except that an unquoted date is a text like any other word."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the kind are PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def _read_file(path: Path, given: _Given) -> None:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{path}: is larger than {FILE_BYTES_MAX} octets, which no configuration is")
    lines: dict[str, int] = {}
    try:
        loader = _Loader(content)
        try:
            node = loader.get_single_node()
            if node is None:
                return
            _note_keys(node, "", str(path), lines, given)
            document = loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigurationError(f"{where}: is no YAML: {error.problem or error.context}") from error
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
        return
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path}: must hold keys with values, not {_kind(document)}")
    _read_mapping(document, str(path), lines, given)


def _note_keys(node: yaml.Node, prefix: str, source: str, lines: dict[str, int], given: _Given) -> None:
    """Remember in which line each key stands; one that stands twice is a problem. Two levels is all."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        path, line = f"{prefix}{key.value}", key.start_mark.line + 1
        if path in lines and key.tag != "tag:yaml.org,2002:merge":
            given.problem(f"{source}:{line}", path, f"stands here a second time, after line {lines[path]}")
        lines[path] = line
        if not prefix:
            _note_keys(value, f"{path}.", source, lines, given)


def _read_mapping(
    mapping: Mapping[Any, object], source: str, lines: Mapping[str, int], given: _Given, section: str = ""
) -> None:
    for key, value in mapping.items():
        path = f"{section}.{key}" if section else str(key)
        where = f"{source}:{lines[path]}" if path in lines else source
        if not section and key in SECTIONS:
            if isinstance(value, Mapping):
                _read_mapping(value, source, lines, given, str(key))
            elif value is not None:
                given.problem(where, path, f"is a section with keys of its own, not {_kind(value)}")
        elif isinstance(key, str) and path in FIELDS:
            given.add(path, _Setting(value, where))
        else:
            given.problem(where, path, f"unknown key{_did_you_mean(path, FIELDS)}")


def _read_environment(environ: Mapping[str, str], given: _Given) -> None:
    paths = {variable_of(path): path for path in FIELDS}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in RESERVED_VARIABLES:
            continue
        if variable in paths:
            given.add(
                paths[variable], _Setting(environ[variable], f"environment variable {variable}", is_text=True)
            )
        else:
            known = {*paths, *RESERVED_VARIABLES}
            suggestion = _did_you_mean(variable, known) or ", and every BSTAR_ variable must name one"
            given.problem(f"environment variable {variable}", "", f"names no key{suggestion}")


def _read_options(options: Mapping[str, object], given: _Given) -> None:
    for path, value in options.items():
        if path in FIELDS:
            given.add(path, _Setting(value, "option", is_text=isinstance(value, str)))
        else:
            given.problem("option", path, f"unknown key{_did_you_mean(path, FIELDS)}")


def _build(given: _Given, source: str) -> Settings:
    values: dict[str, object] = {}
    wrong: set[str] = set()
    for path, field in FIELDS.items():
        setting = given.settings.get(path)
        if setting is None:
            if not field.has_default and not field.from_profile:
                given.problem(
                    source, path, f"is missing; it must be {field.expected} ({variable_of(path)} sets it too)"
                )
                wrong.add(path)
            values[path] = None if field.from_profile else field.default
            continue
        try:
            values[path] = _convert(field, setting)
        except msgspec.ValidationError:
            null = " (null takes the profile's)" if field.from_profile else ""
            given.problem(setting.where, path, f"{_shown(setting.value)} is not {field.expected}{null}")
            wrong.add(path)

    # Go on with what a sample would say in place of what is wrong, to find all that is wrong beside it.
    stand_ins = sample_values("backup" if values.get("role") == "backup" else "primary")
    for path in wrong:
        values[path] = None if FIELDS[path].from_profile else stand_ins[path]
    profile = PROFILES[msgspec.convert(values["profile"], FIELDS["profile"].annotation)]
    for path, field in FIELDS.items():
        if field.from_profile and values[path] is None:
            values[path] = profile[field.name]
    settings = msgspec.convert(_nested(values), Settings)

    for problem in node_problems(settings):
        if wrong.isdisjoint(problem.paths):
            # The place is where somebody said something; a default alone cannot be what is wrong.
            said = (given.settings[path].where for path in problem.paths if path in given.settings)
            given.problem(next(said, source), problem.paths[0], problem.text)
    if given.problems:
        if len(given.problems) == 1:
            raise ConfigurationError(given.problems[0])
        listed = "\n".join(f"  {problem}" for problem in given.problems)
        raise ConfigurationError(f"{len(given.problems)} problems in the configuration:\n{listed}")
    return settings


def _convert(field: Field, setting: _Setting) -> object:
    value = setting.value
    if field.may_be_null and (value is None or (setting.is_text and value in _NULL_TEXTS)):
        return None
    return msgspec.convert(value, field.annotation, strict=not setting.is_text)


def _nested(values: Mapping[str, object]) -> dict[str, Any]:
    nested: dict[str, Any] = {section: {} for section in SECTIONS}
    for path, value in values.items():
        field = FIELDS[path]
        (nested[field.section] if field.section else nested)[field.name] = value
    return nested


def _did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """The known name that was probably meant: the same word in another section counts as near."""
    known = list(known)
    word = wrong.rpartition(".")[2].lower()
    same_word = [name for name in known if name.rpartition(".")[2] == word]
    near = same_word or difflib.get_close_matches(wrong, known, n=1, cutoff=0.75)
    if not near:
        words = {name.rpartition(".")[2]: name for name in known}
        near = [words[found] for found in difflib.get_close_matches(word, words, n=1, cutoff=0.75)]
    return f"; did you mean {near[0]}?" if near else ""


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return _shown(value) if isinstance(value, (list, tuple, set, Mapping)) else f"the value {_shown(value)}"


def _shown(value: object) -> str:
    """A value in a message. Of a group only its kind: with YAML's aliases a small one can be endless."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a group of keys"
    if isinstance(value, (list, tuple, set)):
        return "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
