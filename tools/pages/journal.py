"""The kinds of records, for docs/journal.md: where ``bstar.records`` explains each."""

from bstar.records import KINDS
from pages.markdown import wrapped


def generate() -> str:
    """The Markdown between the markers."""
    files: dict[str, list[str]] = {}
    for word, kind in KINDS.items():
        files.setdefault(kind.__module__.rpartition(".")[2], []).append(word)
    lines = ["| records of a | `kind` |", "|---|---|"]
    for name, words in files.items():
        kinds = ", ".join(f"`{word}`" for word in words)
        lines.append(f"| [{name}](../bstar/bstar/records/{name}.py) | {kinds} |")
    return wrapped("\n".join(lines))
