"""``docs/configuration.md``: every key, and the relations between keys."""

from bstar.settings import RESERVED_VARIABLES
from bstar.settings.fields import ENTRIES, FIELDS, SECTIONS, Field
from bstar.settings.relations import RELATIONS
from bstar.settings.sample import by_profile, scalar
from pages.markdown import wrapped


def generate() -> str:
    """The whole page."""
    lines = [
        "# Configuration",
        "",
        "<!-- Written by `make docs` from the schema in bstar/bstar/settings. -->",
        "",
        (
            "A node reads one YAML file; `bstar sample-config --role primary` prints a complete one "
            "([configs/primary.yaml](../configs/primary.yaml), "
            "[configs/backup.yaml](../configs/backup.yaml)). Environment variables override the file, "
            "options of the command override both: `BSTAR_ENDPOINTS__CLIENTS` is `endpoints.clients`. A "
            "node with a wrong key, value or relation does not start, and reports all of them with their "
            "places. `bstar check-config A.yaml B.yaml` checks two files, and whether they are a pair."
        ),
        "",
        "| variable that is no key | |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in RESERVED_VARIABLES.items()),
        "",
        (
            "Relative paths start where bstar is started. A default like `auto 0.1, wan 1` is by `profile`. "
            "`sample-config` has the values that each key takes."
        ),
        "",
    ]
    for section in ("", *SECTIONS):
        lines += ["## The node", ""] if not section else [f"## `{section}`", "", SECTIONS[section], ""]
        if section and not any(field.section == section for field in FIELDS.values()):
            continue  # it holds sections only
        lines += ["| key | default | meaning |", "|---|---|---|"]
        lines += [
            f"| `{path}` | {_default(field)} | {field.description} |"
            for path, field in FIELDS.items()
            if field.section == section
        ]
        lines.append("")
    for path, members in ENTRIES.items():
        lines += [f"## An entry of `{path}`", "", "| key | default | meaning |", "|---|---|---|"]
        lines += [
            f"| `{path}.PATTERN.{name}` | {_default(member)} | {member.description} |"
            for name, member in members.items()
        ]
        lines.append("")
    lines += [
        "## Clients and workers",
        "",
        (
            "Commands take a file of their own with `--config FILE` or `BSTAR_CLIENT_CONFIG`; programs read "
            "it with `bstar.settings.load_fleet` and give what that returns to `HAClient` or `Worker` in "
            "place of endpoints. `bstar sample-config --role client` prints one "
            "([configs/client.yaml](../configs/client.yaml)), `bstar check-config --client FILE` checks "
            "one. [fleet.md](fleet.md) is about several pairs."
        ),
        "",
        "| key | default | meaning |",
        "|---|---|---|",
        (
            "| `pairs` | required | Names with lists of endpoints, the primary's "
            "first. A list of lists gives the pairs no names; a service then moves when a node moves. |"
        ),
        (
            "| `pins` | `{}` | Services that belong to a certain pair, with its name; one "
            "that ends with `*` stands for all that begin so. |"
        ),
        "",
        "## Relations between keys",
        "",
        "A node refuses a configuration that breaks one of these, and says why it must hold:",
        "",
        *(f"- {relation.words}" for relation in RELATIONS),
        "",
        "One file does not show these, so check them yourself:",
        "",
        ("- A client's deadline should be longer than `failover_timeout_s` plus the time a call takes."),
        (
            "- `failover_timeout_s` should be longer than the pauses that your machines really make: a node "
            "that was away longer steps down even if no other node can serve."
        ),
        "",
    ]
    return wrapped("\n".join(lines))


def _default(field: Field) -> str:
    if field.from_profile:
        return by_profile(field)
    return f"`{scalar(field.default)}`" if field.has_default else "required"
