"""Patterns of names: a name, or the beginning of names with * at its end. "*" alone matches every name."""

from collections.abc import Iterable


def closest(name: bytes, patterns: Iterable[str]) -> str | None:
    """The pattern that counts for this name: the name itself, or the longest one that matches. None without
    one.
    """
    found: str | None = None
    for pattern in patterns:
        text = pattern.encode()
        if not text.endswith(b"*"):
            if text == name:
                return pattern
        elif name.startswith(text[:-1]) and (found is None or len(text) > len(found.encode())):
            found = pattern
    return found


def is_pattern(text: str) -> bool:
    """True for a pattern: * stands at the end only."""
    return text != "" and "*" not in text[:-1]
