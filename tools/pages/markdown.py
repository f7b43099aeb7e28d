"""Markdown for generated pages: lines of 100 columns, and a part between two markers."""

import textwrap

_WIDTH = 100
BEGIN = "<!-- begin of the generated part: make docs -->"
END = "<!-- end of the generated part -->"


def wrapped(markdown: str) -> str:
    """Each paragraph and bullet, which is one line, at 100 columns; tables, headings and code stay."""
    return "\n".join(
        line
        if line.startswith(("|", "#", "<", " ", "`" * 3))
        else textwrap.fill(
            line,
            _WIDTH,
            subsequent_indent="  " if line.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in markdown.split("\n")
    )


def replace(document: str, part: str) -> str:
    """``document`` with ``part`` between the markers; ValueError if it lacks them."""
    head, begin, rest = document.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the two markers are missing: {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{part}\n\n{END}{tail}"
