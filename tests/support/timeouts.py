"""A call whose node says why it timed out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bstar.errors import CallTimeoutError

ATTEMPTS = 20


def timeout_of_node(ask: Callable[[], object]) -> CallTimeoutError:
    """The error of a call that its node ends.

    The node's word comes 250 ms at most before the client's own deadline. If a process gets no CPU just then,
    the deadline comes first, and the call is made again.
    """
    for _ in range(ATTEMPTS):
        with pytest.raises(CallTimeoutError) as caught:
            ask()
        if "has not answered" not in str(caught.value):
            return caught.value
    raise AssertionError(f"{ATTEMPTS} calls ended without their node's word")
