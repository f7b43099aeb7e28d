"""The orders of an operator, for docs/cli.md. What each means by 0 and 1 is in its ``--help``."""

import msgspec

from bstar_broker.operate.orders import ORDERS, Order


def generate() -> str:
    """The Markdown between the markers."""
    rows = [f"| `{_usage(each)}` | {each.at} | {each.about} |" for each in ORDERS]
    return "\n".join(["| `bstar …` | on the machine of | what it does |", "|---|---|---|", *rows])


def _usage(order: Order) -> str:
    words = [order.command]
    for field in msgspec.structs.fields(order.request):
        meta = next((each for each in getattr(field.type, "__metadata__", ()) if each.extra), None)
        if meta is not None:
            names, metavar = meta.extra.get("names", []), meta.extra["metavar"]
            word = " ".join(filter(None, (*names[:1], metavar)))
            words.append(word if field.required else f"[{word}]")
    return " ".join(words)
