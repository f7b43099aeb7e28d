"""The keys of a configuration one by one, as the loader, the samples and the reference see them."""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from bstar.settings.schema import Settings
from bstar.settings.timing import Timing


class Field(msgspec.Struct, frozen=True):
    """One key, as the loader, the sample and the reference see it."""

    path: str
    annotation: Any  # what msgspec converts to; type expressions have no better type
    description: str
    may_be_null: bool
    from_profile: bool
    has_default: bool
    default: object
    expected: str
    """What a right value is, for a message: "a number from 0.01 to 30"."""

    @property
    def section(self) -> str:
        """The part before the last dot, empty at the top."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The part after the last dot."""
        return self.path.rpartition(".")[2]


def _expected(bare: Any, meta: Meta) -> str:
    members = [member for member in get_args(bare) if member is not NoneType]
    if get_origin(bare) is Annotated:
        return _expected(*get_args(bare))
    if get_origin(bare) in (Union, UnionType):
        return f"{_expected(members[0], meta)} or null"
    if get_origin(bare) is Literal:
        return f"one of {', '.join(str(member) for member in members)}"
    if get_origin(bare) is dict:
        return "a group of patterns, each with its limits"
    if bare is bool:
        return "true or false"
    if bare is str:
        return "a text of letters, digits, '.', '_', '-', at most 64" if meta.pattern else "a text"
    kind = "a whole number" if bare is int else "a number"
    return (
        f"{kind} from {meta.ge:g} to {meta.le:g}" if bare is float else f"{kind} from {meta.ge} to {meta.le}"
    )


def _entry_of(annotation: Any) -> type[msgspec.Struct]:
    """What a key holds for each name that its user gives."""
    entry: type[msgspec.Struct] = get_args(get_args(annotation)[0])[1]
    return entry


def _fields(section: type[msgspec.Struct], prefix: str) -> Iterator[Field]:
    for field in msgspec.structs.fields(section):
        path = prefix + field.name
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _fields(field.type, f"{path}.")
            continue
        assert get_origin(field.type) is Annotated, f"{path} has no Meta"
        bare, meta = get_args(field.type)
        assert isinstance(meta, Meta)
        assert meta.description, f"{path} is not described"
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        yield Field(
            path=path,
            annotation=field.type,
            description=meta.description,
            may_be_null=NoneType in get_args(bare) or section is Timing,
            from_profile=section is Timing,
            has_default=default is not msgspec.NODEFAULT,
            default=default,
            expected=_expected(bare, meta),
        )


def _sections(section: type[msgspec.Struct], prefix: str) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(section):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield prefix + field.name, " ".join((field.type.__doc__ or "").split())
            yield from _sections(field.type, f"{prefix}{field.name}.")


FIELDS: dict[str, Field] = {field.path: field for field in _fields(Settings, "")}
"""Every key by its dotted path, in the order of the schema."""

SECTIONS: dict[str, str] = dict(_sections(Settings, ""))
"""Every section by its dotted path, and what it is about; one that holds others comes before them."""


ENTRIES: dict[str, dict[str, Field]] = {
    path: {member.path: member for member in _fields(_entry_of(field.annotation), "")}
    for path, field in FIELDS.items()
    if get_origin(get_args(field.annotation)[0]) is dict
}
"""Of each key that holds entries by a name: the keys of such an entry."""


def flatten(settings: Settings) -> dict[str, object]:
    """Every key's value by its dotted path, profiles resolved: what the node will really use."""
    return {path: attrgetter(path)(settings) for path in FIELDS}


def nested(values: Mapping[str, object]) -> dict[str, Any]:
    """Values by their dotted paths, as nested mappings: what ``Settings`` is made of."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        owner = found
        for section in sections:
            owner = owner.setdefault(section, {})
        owner[name] = value
    return found
