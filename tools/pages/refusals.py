"""The reasons of refusals, for docs/operations.md."""

from bstar.wire.refusals import REFUSALS


def generate() -> str:
    """The Markdown between the markers."""
    rows = [
        f"| `{each.reason}` | {'BUSY' if each.code is None else each.code.name}: {each.text} "
        f"| {'yes' if each.may_have_run else 'no'} | {'yes' if each.is_of_service else 'no'} | {each.do} |"
        for each in REFUSALS
    ]
    head = "| reason | what the client gets | may an attempt have run | counts for the service | do |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])
