r"""What the stages of scripts share: a line of a script is a verb and its words, of the stage or of a peer.

``8 times wait 0.25; primary says ACTIVE`` does all of that again and again, with ``#`` for the number of the
turn. ``1 3-5`` are numbers. Frames are text with bytes as ``\x02``; ``12*x`` is twelve of them.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_DULL_MIN = 8


def options_of(words: Iterable[str]) -> dict[str, str]:
    """``name=value``, or ``name`` for a flag."""
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def numbers_of(words: Sequence[str]) -> list[int]:
    """Those among the words."""
    found: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        if first.isdigit():
            found += range(int(first), int(last or first) + 1)
    return found


def spans_of(numbers: Sequence[int]) -> str:
    """The numbers as a script has them."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in spans)


def frame_of(word: str) -> bytes:
    """A frame of a script."""
    count, is_many, rest = word.partition("*")
    octets = (rest if is_many else word).encode().decode("unicode_escape").encode("latin-1")
    return octets * int(count) if is_many else octets


def text_of(frame: bytes) -> str:
    """The frame as a script has it."""
    if len(set(frame)) == 1 and len(frame) > _DULL_MIN:
        return f"{len(frame)}*{text_of(frame[:1])}"
    return "".join(chr(each) if 32 <= each < 127 else f"\\x{each:02x}" for each in frame) or "''"


class Stage:
    """``run`` carries one line out and returns what is seen of it.

    The verb ``call`` is the method ``do_call``, and that of a peer ``peer_call``. What comes again and again
    is ``counted``. ``facts`` are looked at after each line; those that have changed are seen.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.counted: Counter[str] = Counter()
        self._facts: Mapping[str, object] = {}

    def run(self, line: str) -> list[str]:
        """Carry the line out; what is seen."""
        if line.startswith("#"):
            return []
        self.forget()
        self._do(line)
        counted = [f"{text}{f', {n} times' * (n > 1)}" for text, n in sorted(self.counted.items())]
        before, self._facts = self._facts, self.facts()
        changed = [f"{name} {value}" for name, value in self._facts.items() if value != before.get(name, 0)]
        return [*self.seen, *counted, *([f"= {', '.join(changed)}"] if changed else [])]

    def forget(self) -> None:
        """Nothing was seen yet."""
        self.seen.clear()
        self.counted.clear()

    def facts(self) -> Mapping[str, object]:
        """What is to be seen when it changes."""
        raise NotImplementedError

    def begin(self) -> None:
        """All is new: there is nothing that has changed."""
        self.forget()
        self._facts = self.facts()

    def peer_of(self, name: str) -> Any:
        """What stands for the peer of this name: the argument of ``peer_…``, of its stage's own kind."""
        return name

    def peer(self, name: str, verb: str, words: list[str]) -> None:
        """A peer does something."""
        getattr(self, f"peer_{verb.replace('-', '_')}")(self.peer_of(name), words)

    def _do(self, line: str) -> None:
        lexer = shlex.shlex(line, posix=True)
        lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
        first, *words = lexer
        if first.isdigit():
            for turn in range(int(first)):
                for each in line.split(" times ")[1].split("; "):
                    self._do(each.replace("#", f"{turn}"))
        elif (act := getattr(self, f"do_{first.replace('-', '_')}", None)) is not None:
            act(words)
        else:
            self.peer(first, words[0], words[1:])
