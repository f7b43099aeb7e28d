"""The sample configurations and the reference, written from the schema so that they cannot say anything else.

``bstar sample-config`` prints what ``configs/primary.yaml`` and ``configs/backup.yaml`` hold: a pair on one
machine, every key present with its default and its meaning above it.
"""

import textwrap

import msgspec
import yaml

from bstar.generated import wrapped
from bstar.settings.fields import FIELDS, SECTIONS, Field
from bstar.settings.relations import RELATIONS
from bstar.settings.schema import RESERVED_VARIABLES, RoleName, Settings
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
    nested: dict[str, dict[str, object]] = {section: {} for section in SECTIONS}
    top: dict[str, object] = {}
    for path, field in FIELDS.items():
        value = profile[field.name] if field.from_profile else values[path]
        (nested[field.section] if field.section else top)[field.name] = value
    return msgspec.convert(top | nested, Settings)


def sample_configuration(role: RoleName) -> str:
    """A complete YAML configuration for a node of this role, with a comment above every key."""
    lines = _comment(
        f"bstar: the {role} node of a pair on one machine, as printed by: bstar sample-config --role "
        f"{role}. Every key is here with its default. An environment variable overrides a key: BSTAR_ and "
        "the key's path in capitals, with __ for the dot (BSTAR_LOG__LEVEL=debug); an option of the "
        "command overrides both.",
        indent=0,
    )
    values = sample_values(role)
    for section in ("", *SECTIONS):
        lines.append("")
        indent = 0
        if section:
            lines += [*_comment(SECTIONS[section], indent=0), f"{section}:"]
            indent = 2
        for path, field in FIELDS.items():
            if field.section == section:
                lines += _comment(f"{field.description} {_values_of(field)}", indent=indent)
                lines += [f"{' ' * indent}{field.name}: {_scalar(values[path])}", ""]
        lines.pop()
    return "\n".join(lines) + "\n"


def reference() -> str:
    """``docs/configuration.md``: every key, the relations between keys, in Markdown."""
    lines = [
        "# Configuration",
        "",
        "<!-- Written by `make docs` from the schema in bstar/bstar/settings. -->",
        "",
        (
            "A node reads one YAML file. Environment variables override the file, options of the command "
            "override both. A variable is `BSTAR_` and the key's path in capitals with `__` for the dot: "
            "`BSTAR_ENDPOINTS__CLIENTS`. An unknown key or variable, a wrong value, a key that stands twice "
            "or two keys that contradict each other stop the node before it opens a socket; all that is "
            "wrong is reported at once, each with its place. Variables that name no key: "
            + "; ".join(f"`{name}`, {meaning}" for name, meaning in RESERVED_VARIABLES.items())
            + "."
        ),
        "",
        (
            "`bstar sample-config --role primary` prints a complete file; "
            "[configs/primary.yaml](../configs/primary.yaml) and "
            "[configs/backup.yaml](../configs/backup.yaml) are such files. `bstar check-config A.yaml "
            "B.yaml` checks each of two files and whether they are a pair."
        ),
        "",
    ]
    for section in ("", *SECTIONS):
        lines += ["## The node", ""] if not section else [f"## `{section}`", "", SECTIONS[section], ""]
        lines += ["| key | default | value | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{path}` | {_default(field)} | {field.expected} | {field.description} |"
            for path, field in FIELDS.items()
            if field.section == section
        ]
        lines.append("")
    lines += [
        "## Clients and workers",
        "",
        (
            "`bstar worker`, `call`, `load` and `status` take a file of their own with `--config FILE` or "
            "`BSTAR_CLIENT_CONFIG`; programs read it with `bstar.settings.load_fleet` and give what that "
            "returns to `HAClient` or `Worker` in place of endpoints. "
            "[configs/client.yaml](../configs/client.yaml) is one; `bstar sample-config --role client` "
            "prints it, and `bstar check-config --client FILE` checks one. [fleet.md](fleet.md) tells of "
            "several pairs."
        ),
        "",
        "| key | default | value | meaning |",
        "|---|---|---|---|",
        (
            "| `pairs` | (must be given) | names with lists of endpoints, the primary's first | The pairs. A "
            "list of lists gives them no names; a service then moves when a node moves. |"
        ),
        (
            "| `pins` | `{}` | services with names of pairs | Services that belong to a certain pair; one "
            "that ends with `*` stands for all that begin so. |"
        ),
        "",
        "## Relations between keys",
        "",
        "Checked before a node starts:",
        "",
        "| must hold | because |",
        "|---|---|",
        *(f"| {relation.words} | {relation.reason} |" for relation in RELATIONS),
        "",
        "Not visible in one file, so nobody checks them for you:",
        "",
        (
            "- A client's deadline should be longer than `failover_timeout_s` plus the time a call takes, or "
            "its calls end before the passive node may serve them. The published Binary Star client gives a "
            "node 1 s and then waits 2 s before it tries the other one; where `failover_timeout_s` is longer "
            "than this it needs another round."
        ),
        (
            "- A node that a process manager restarts within `failover_timeout_s` finds its peer active: the "
            "pair changes roles without a client's vote. Restart slower, or expect it."
        ),
        (
            "- `failover_timeout_s` should be longer than the pauses your machines really make (a full "
            "disk, a migrating virtual machine, a stopped container): a node that was away longer steps "
            "down even if nobody else can serve."
        ),
        "",
    ]
    return wrapped("\n".join(lines))


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
        return f"{field.expected[:1].upper()}{field.expected[1:]}; null: {_by_profile(field)}."
    if field.expected.startswith("a text"):
        return "A text or null." if field.may_be_null else ""
    return f"{field.expected[:1].upper()}{field.expected[1:]}."


def _default(field: Field) -> str:
    if field.from_profile:
        return _by_profile(field)
    return f"`{_scalar(field.default)}`" if field.has_default else "(must be given)"


def _by_profile(field: Field) -> str:
    numbers = {name: numbers[field.name] for name, numbers in PROFILES.items()}
    if len(set(numbers.values())) == 1:
        return _number(numbers["lan"])
    return ", ".join(f"{name} {_number(number)}" for name, number in numbers.items())


def _number(number: float) -> str:
    return _scalar(number) if isinstance(number, bool) else f"{number:g}"


def _scalar(value: object) -> str:
    dumped: str = yaml.safe_dump(value, width=10_000)
    return dumped.removesuffix("...\n").strip()
