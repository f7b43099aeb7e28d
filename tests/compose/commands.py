"""Programs that the compose test runs, and waiting for what they bring about.

What cannot be waited for as an event (a container's health, an alert) is asked for again and again, with a
limit that only a hang reaches.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
LIMIT_S = 120.0
_COMMAND_LIMIT_S = 900.0
_PAUSE_S = 0.2


class ComposeTestError(Exception):
    """Something needed is missing, or something expected did not come. The text says what to do."""


def say(text: str) -> None:
    """Tell what is being done."""
    sys.stdout.write(f"{time.strftime('%T')}  {text}\n")
    sys.stdout.flush()


def run(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    check: bool = True,
    stdin: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end. With ``check`` a status other than 0 is an error with what it printed."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env=env,
            cwd=cwd,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=_COMMAND_LIMIT_S,
            check=False,
        )
    except FileNotFoundError as error:
        raise ComposeTestError(f"there is no program {words[0]} on the PATH") from error
    if check and done.returncode != 0:
        raise ComposeTestError(
            f"{' '.join(words)}: status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-6000:]}"
        )
    return done


def need(program: str, package: str) -> str:
    """Where a program is; an error that names the Debian package if it is not there."""
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/local/sbin")
    if found is None:
        raise ComposeTestError(f"{program} is missing; on Debian: apt-get install {package}")
    return found


def wait_until(what: str, question: Callable[[], T], *, limit_s: float = LIMIT_S) -> T:
    """Ask until the answer is true, and return it."""
    ends_at = time.monotonic() + limit_s
    while True:
        answer = question()
        if answer:
            return answer
        if time.monotonic() > ends_at:
            raise ComposeTestError(f"waited {limit_s:g} s in vain until {what}")
        time.sleep(_PAUSE_S)
