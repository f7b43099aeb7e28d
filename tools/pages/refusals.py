"""The reasons of refusals, for docs/operations.md."""

from bstar.wire.refusals import REFUSALS
from pages.markdown import wrapped


def generate() -> str:
    """The Markdown between the markers."""
    rows = [
        f"| `{each.reason}`{' *' if each.is_of_service else ''}"
        f"{'' if each.code is None else f' {each.code.name}'} | {each.do} |"
        for each in REFUSALS
    ]
    ran = ", ".join(f"`{each.reason}`" for each in REFUSALS if each.may_have_run)
    note = (
        "Where no answer stands it is BUSY. \\* counts for the service. An earlier attempt may have run: "
        f"{ran} only."
    )
    return "\n".join(["| reason, answer | do |", "|---|---|", *rows, "", wrapped(note)])
