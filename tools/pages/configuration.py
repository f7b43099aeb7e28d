"""``docs/configuration.md``: how a configuration is given, and the relations between keys.

The keys themselves are in the sample configurations, which are generated from the same schema.
"""

from bstar.settings import RESERVED_VARIABLES
from bstar.settings.fields import ENTRIES
from bstar.settings.relations import RELATIONS
from pages.markdown import wrapped


def generate() -> str:
    """The whole page."""
    lines = [
        "# Configuration",
        "",
        "<!-- Written by `make docs` from the schema in bstar/bstar/settings. -->",
        "",
        (
            "[configs/primary.yaml](../configs/primary.yaml) has every key of a node, with its meaning, "
            "values and default; `bstar sample-config --role primary` prints it "
            "([configs/backup.yaml](../configs/backup.yaml): `--role backup`). A node reads one such file. "
            "Environment variables override the file, options of the command override both: "
            "`BSTAR_ENDPOINTS__CLIENTS` is `endpoints.clients`. A node with a wrong key, value or relation "
            "does not start, and reports all of them with their places. `bstar check-config A.yaml B.yaml` "
            "checks two files, and whether they are a pair. Relative paths start where bstar is started. "
            "SIGHUP lets a node read changed `log`, `limits` and `services`; other keys need a restart."
        ),
        "",
        "| variable that is no key | |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in RESERVED_VARIABLES.items()),
        "",
    ]
    for path, members in ENTRIES.items():
        lines += [f"## An entry of `{path}`", "", "A key that it leaves out sets no limit.", ""]
        lines += ["| key | meaning |", "|---|---|"]
        lines += [f"| `{path}.PATTERN.{name}` | {member.description} |" for name, member in members.items()]
        lines.append("")
    lines += [
        "## Clients and workers",
        "",
        (
            "Commands take a file of their own with `--config FILE` or `BSTAR_CLIENT_CONFIG`; programs read "
            "it with `bstar.settings.load_fleet` and give what that returns to `HAClient` or `Worker` in "
            "place of endpoints. [configs/client.yaml](../configs/client.yaml), which `bstar sample-config "
            "--role client` prints, explains its two keys, `pairs` and `pins`; `bstar check-config --client "
            "FILE` checks one. Pairs as a list of lists have no names: a service then moves when a node "
            "moves. [fleet.md](fleet.md) is about several pairs."
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
