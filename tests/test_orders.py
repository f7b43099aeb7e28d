"""Orders of an operator: the table, and scripts of what each does, what ``bstar`` prints and how it ends.

The scripts are in tests/golden/orders.txt (``support.golden``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import msgspec
import pytest

from bstar_broker.operate.orders import GROUPS, ORDERS
from support.golden import Scripts
from support.order_stage import Stage

SCRIPTS = Scripts("orders.txt")


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with monkeypatch.context() as patched:
        for name in [name for name in os.environ if name.startswith("BSTAR_")]:
            patched.delenv(name)
        patched.setenv("TZ", "UTC")
        time.tzset()
        yield Stage(patched)
    time.tzset()


@pytest.mark.parametrize("title", SCRIPTS.titles)
def test_a_script_goes_as_it_was_read(title: str, stage: Stage) -> None:
    SCRIPTS.play(title, stage)


def test_every_order_is_given_and_refused_in_a_script() -> None:
    text = SCRIPTS.path.read_text("utf-8")
    blocks = [block for block in text.split("\n$ ") if block.startswith("bstar ")]
    for order in ORDERS:
        given = [block for block in blocks if block.startswith(f"bstar {order.command}")]
        assert any("\nexit " not in block for block in given), order.command
        assert any("\nexit 1" in block for block in given), order.command


def test_the_words_on_the_wire_are_words_and_each_is_one_order() -> None:
    words = [order.word for order in ORDERS]
    assert len(set(words)) == len(words)
    assert all(word.replace("-", "").isalpha() and word.islower() for word in words)


def test_each_order_says_what_its_command_and_its_page_need() -> None:
    for order in ORDERS:
        assert order.about.endswith("."), order.command
        assert all((order.done, order.refused, order.examples, order.at)), order.command
        assert (order.progress is None) >= (order.wait_s is None) or order.command == "drain"
        assert order.command.count(" ") == 0 or order.command.split()[0] in (*GROUPS, "store")
        assert msgspec.json.decode(b"{}", type=order.answer).refusal == "", "an answer may be a refusal alone"
