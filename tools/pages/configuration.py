"""``docs/configuration.md``: every key, and the relations between keys."""

from bstar.settings import RESERVED_VARIABLES
from bstar.settings.fields import FIELDS, SECTIONS, Field
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
        if section and not any(field.section == section for field in FIELDS.values()):
            continue  # it holds sections only
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


def _default(field: Field) -> str:
    if field.from_profile:
        return by_profile(field)
    return f"`{scalar(field.default)}`" if field.has_default else "(must be given)"
