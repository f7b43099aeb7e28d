"""The orders of an operator, for docs/cli.md."""

import msgspec

from bstar_broker.operate.orders import ORDERS, Order


def generate() -> str:
    """The Markdown between the markers."""
    rows = [
        f"| `{_usage(each)}` | {each.about} | {each.at} | {each.done} | {each.refused} |" for each in ORDERS
    ]
    head = "| `bstar …` | what it does | on the machine of | 0 | 1 |"
    return "\n".join([head, "|---|---|---|---|---|", *rows])


def _usage(order: Order) -> str:
    words = [order.command]
    for field in msgspec.structs.fields(order.request):
        meta = next((each for each in getattr(field.type, "__metadata__", ()) if each.extra), None)
        if meta is not None:
            names, metavar = meta.extra.get("names", []), meta.extra["metavar"]
            word = " ".join(filter(None, (*names[:1], metavar)))
            words.append(word if field.required else f"[{word}]")
    return " ".join(words)
