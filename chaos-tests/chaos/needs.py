"""What a scenario needs to be run and to be believed.

A machine without a Toxiproxy server skips the scenarios that need one, and says so; with ``CI=true`` they
fail, because there nobody reads what was skipped. A run that shows nothing is repeated a few times.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec

import pytest

from chaos.toxiproxy import ToxiproxyMissingError, get_binary, say
from chaos.validate import InvalidRunError

P = ParamSpec("P")

_ATTEMPTS_MAX = 3

# For a whole module: a hang ends after this, long after the harness's own limits.
CHAOS = pytest.mark.timeout(420)


def need_toxiproxy() -> None:
    """Skip the test if there is no Toxiproxy server; in CI, fail."""
    try:
        get_binary()
    except ToxiproxyMissingError as error:
        say(f"no Toxiproxy server: {error}")
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no Toxiproxy server: {error}")


def until_valid(test: Callable[P, None]) -> Callable[P, None]:
    """Run the test again if its run shows nothing (too little traffic, a machine that stood still)."""

    @functools.wraps(test)
    def repeat(*arguments: P.args, **options: P.kwargs) -> None:
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            try:
                test(*arguments, **options)
            except InvalidRunError as error:
                say(f"{test.__name__}, attempt {attempt}: {error}")
                if attempt == _ATTEMPTS_MAX:
                    raise
            else:
                return

    return repeat
