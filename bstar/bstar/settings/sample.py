"""The sample configurations, written from the schema so that they cannot say anything else.

``bstar sample-config`` prints what ``configs/primary.yaml`` and ``configs/backup.yaml`` hold: a pair on one
machine, every key present with its default and its meaning above it, and those that have no default marked.
"""

import textwrap

import msgspec
import yaml

from bstar.settings.fields import FIELDS, SECTIONS, Field, nested
from bstar.settings.schema import RoleName, Settings
from bstar.settings.timing import PROFILES

_WIDTH = 100

# A pair on one machine. Whoever moves a node to a machine of its own changes these, and says insecure: true.
_BY_ROLE: dict[RoleName, dict[str, object]] = {
    "primary": {
        "role": "primary",
        "endpoints.clients": "tcp://127.0.0.1:5001",
        "endpoints.state": "tcp://127.0.0.1:5003",
        "endpoints.peer_state": "tcp://127.0.0.1:5004",
        "http.bind": "127.0.0.1:9401",
    },
    "backup": {
        "role": "backup",
        "endpoints.clients": "tcp://127.0.0.1:5002",
        "endpoints.state": "tcp://127.0.0.1:5004",
        "endpoints.peer_state": "tcp://127.0.0.1:5003",
        "http.bind": "127.0.0.1:9402",
    },
}


# Sections that hold nothing but sections.
_GROUPS = SECTIONS.keys() - {field.section for field in FIELDS.values()}


def sample_values(role: RoleName) -> dict[str, object]:
    """The sample's value of every key; null where the profile decides."""
    values: dict[str, object] = {
        path: None if field.from_profile or not field.has_default else field.default
        for path, field in FIELDS.items()
    }
    return values | _BY_ROLE[role]


def sample_settings(role: RoleName) -> Settings:
    """The settings that the sample configuration of this role loads to."""
    values = sample_values(role)
    profile = PROFILES[msgspec.convert(values["profile"], FIELDS["profile"].annotation)]
    values |= {path: profile[field.name] for path, field in FIELDS.items() if field.from_profile}
    return msgspec.convert(nested(values), Settings)


def sample_configuration(role: RoleName) -> str:
    """A complete YAML configuration for a node of this role, with a comment above every key."""
    lines = _comment(
        f"bstar: the {role} node of a pair on one machine, as printed by: bstar sample-config --role "
        f"{role}. Every key is here, with its default unless its comment says otherwise. An environment "
        "variable overrides a key: BSTAR_ and the key's path in capitals, with __ for the dot "
        "(BSTAR_LOG__LEVEL=debug); an option of the command overrides both.",
        indent=0,
    )
    values = sample_values(role)
    for section in ("", *SECTIONS):
        lines.append("")
        indent = 0
        if section:
            depth = 2 * section.count(".")
            name = section.rpartition(".")[2]
            lines += [*_comment(SECTIONS[section], indent=depth), f"{' ' * depth}{name}:"]
            indent = depth + 2
            if section in _GROUPS:
                continue
        for path, field in FIELDS.items():
            if field.section == section:
                texts = (field.description, _values_of(field), _default_of(field, values[path]))
                lines += _comment(" ".join(filter(None, texts)), indent=indent)
                lines += [f"{' ' * indent}{field.name}: {scalar(values[path])}", ""]
        lines.pop()
    return "\n".join(lines) + "\n"


def _comment(text: str, *, indent: int) -> list[str]:
    prefix = " " * indent + "# "
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=prefix,
        subsequent_indent=prefix,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _values_of(field: Field) -> str:
    if field.from_profile:
        return f"{field.expected[:1].upper()}{field.expected[1:]}; null: {by_profile(field)}."
    if field.expected.startswith("a text"):
        return "A text or null." if field.may_be_null else ""
    return f"{field.expected[:1].upper()}{field.expected[1:]}."


def _default_of(field: Field, shown: object) -> str:
    """What a reader must know of the default of a key that the sample shows with another value."""
    if field.from_profile or (field.has_default and field.default == shown):
        return ""
    return f"Default {scalar(field.default)}." if field.has_default else "Required."


def by_profile(field: Field) -> str:
    """The default of a key of ``timing``; by profile where they differ."""
    numbers = {name: numbers[field.name] for name, numbers in PROFILES.items()}
    if len(set(numbers.values())) == 1:
        return _number(numbers["auto"])
    return ", ".join(f"{name} {_number(number)}" for name, number in numbers.items())


def _number(number: float) -> str:
    return scalar(number) if isinstance(number, bool) else f"{number:g}"


def scalar(value: object) -> str:
    """The value as YAML writes it."""
    dumped: str = yaml.safe_dump(value, width=10_000)
    return dumped.removesuffix("...\n").strip()
