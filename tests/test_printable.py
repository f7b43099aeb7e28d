"""Foreign text cannot do anything to a terminal, and stays on its line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.base.printable import address_text, printable


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("price", "price"),
        (b"price", "price"),
        ("Grüße 价格", "Grüße 价格"),
        ("two\nlines", r"two\nlines"),
        ("\x1b]0;title\x07red", r"\x1b]0;title\x07red"),
        ("right\u202eleft", r"right\u202eleft"),
        (b"\xff\xfename", r"\xff\xfename"),
        ("\udc80", r"\udc80"),
        ("", ""),
    ],
)
def test_what_a_terminal_obeys_is_written_as_escapes(told: str | bytes, shown: str) -> None:
    assert printable(told) == shown


@pytest.mark.parametrize("endless", ["x" * 10_000_000, b"x" * 10_000_000])
def test_of_a_long_text_the_beginning_is_shown(endless: str | bytes) -> None:
    assert printable(endless, 10) == "xxxxxxxxx…"


@given(st.text() | st.binary())
def test_whatever_it_is_one_printable_line_comes_out(told: str | bytes) -> None:
    assert printable(told).isprintable()


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("10.0.0.4", "10.0.0.4"),
        ("::ffff:10.0.0.4", "10.0.0.4"),
        ("2001:db8::ffff:1", "2001:db8::ffff:1"),
        ("::ffff:1", "::ffff:1"),
    ],
)
def test_an_ipv4_address_is_written_as_one(told: str, shown: str) -> None:
    assert address_text(told) == shown
