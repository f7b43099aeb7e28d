"""From a file, the environment and options to one ``Settings``, or to one error that tells all that is wrong.

Later wins: file, then ``BSTAR_…`` variables, then options. A variable is the dotted path in capitals with
``__`` for the dot: ``BSTAR_ENDPOINTS__CLIENTS``. Texts from variables and options are read as the key's type;
in the file a value must already be of it.
"""

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from bstar.base.undecodable import UNDECODABLE
from bstar.settings.document import Problems, kind, locator, read_document, shown
from bstar.settings.fields import ENTRIES, FIELDS, SECTIONS, Field, nested
from bstar.settings.relations import node_problems
from bstar.settings.sample import sample_values
from bstar.settings.schema import RESERVED_VARIABLES, Settings
from bstar.settings.timing import PROFILES

PREFIX = "BSTAR_"

# A variable or option with one of these texts sets a key that may be null to null.
_NULL_TEXTS = ("", "null")


class _Setting(msgspec.Struct, frozen=True):
    """A value that somebody gave, and where."""

    value: object
    where: str
    is_text: bool = False  # from a variable or an option: "0.5" may stand for 0.5
    locate: Callable[[str], str] | None = None  # in a file: the place of a key below it


class _Given(Problems):
    """What has been said so far, and what was wrong with it."""

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, _Setting] = {}

    def add(self, path: str, setting: _Setting) -> None:
        self.settings[path] = setting


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
        document, lines = read_document(Path(path), given, depth=3)
        _read_mapping(document, locator(source, lines), given)
    _read_environment(os.environ if environ is None else environ, given)
    _read_options(options or {}, given)
    return _build(given, source)


def from_mapping(mapping: Mapping[str, object], *, source: str = "configuration") -> Settings:
    """Settings from nested mappings as YAML would hold them. Raises ConfigurationError like ``load``."""
    given = _Given()
    _read_mapping(mapping, locator(source, {}), given)
    return _build(given, source)


def _read_mapping(
    mapping: Mapping[Any, object], locate: Callable[[str], str], given: _Given, section: str = ""
) -> None:
    for key, value in mapping.items():
        path = f"{section}.{key}" if section else str(key)
        where = locate(path)
        if isinstance(key, str) and path in SECTIONS:
            if isinstance(value, Mapping):
                _read_mapping(value, locate, given, path)
            elif value is not None:
                given.problem(where, path, f"is a section with keys of its own, not {kind(value)}")
        elif isinstance(key, str) and path in FIELDS:
            given.add(path, _Setting(value, where, locate=locate))
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
        except UNDECODABLE:
            _say_what_is_wrong(field, setting, given)
            wrong.add(path)

    # Go on with what a sample would say in place of what is wrong, to find all that is wrong beside it.
    stand_ins = sample_values("backup" if values.get("role") == "backup" else "primary")
    for path in wrong:
        values[path] = None if FIELDS[path].from_profile else stand_ins[path]
    profile = PROFILES[msgspec.convert(values["profile"], FIELDS["profile"].annotation)]
    if values["timing.failover_timeout_max_s"] is None:
        # A timeout of the operator's own is what it says: fixed.
        values["timing.failover_timeout_max_s"] = values["timing.failover_timeout_s"]
    for path, field in FIELDS.items():
        if field.from_profile and values[path] is None:
            values[path] = profile[field.name]
    settings = msgspec.convert(nested(values), Settings)

    for problem in node_problems(settings):
        if wrong.isdisjoint(problem.paths):
            # The place is where somebody said something; a default alone cannot be what is wrong.
            said = (given.settings[path].where for path in problem.paths if path in given.settings)
            given.problem(next(said, source), problem.paths[0], problem.text)
    given.raise_all()
    return settings


def _convert(field: Field, setting: _Setting) -> object:
    value = setting.value
    if field.path in ENTRIES and setting.is_text:
        return msgspec.json.decode(str(value), type=field.annotation)
    if field.may_be_null and (value is None or (setting.is_text and value in _NULL_TEXTS)):
        return None
    return msgspec.convert(value, field.annotation, strict=not setting.is_text)


def _say_what_is_wrong(field: Field, setting: _Setting, given: _Given) -> None:
    value, path = setting.value, field.path
    if path in ENTRIES and isinstance(value, Mapping):
        for part, text in _wrong_entries(value, ENTRIES[path]):
            below = f"{path}.{part}"
            given.problem(setting.locate(below) if setting.locate else setting.where, below, text)
        return
    null = " (null takes the profile's)" if field.from_profile else ""
    given.problem(setting.where, path, f"{shown(value)} is not {field.expected}{null}")


def _wrong_entries(entries: Mapping[Any, object], members: Mapping[str, Field]) -> Iterator[tuple[str, str]]:
    """What is wrong with a key's entries by name: the path below the key, and a text."""
    for name, entry in entries.items():
        if not isinstance(name, str):
            yield str(name), f"YAML reads this name as {shown(name)}: put it in quotes"
        elif not isinstance(entry, Mapping):
            yield name, f"is a section with keys of its own, not {kind(entry)}"
        else:
            for word, value in entry.items():
                member = members.get(word)
                if member is None:
                    yield f"{name}.{word}", f"unknown key; there are {', '.join(members)}"
                    continue
                try:
                    msgspec.convert(value, member.annotation)
                except msgspec.ValidationError:
                    yield f"{name}.{word}", f"{shown(value)} is not {member.expected}"


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
