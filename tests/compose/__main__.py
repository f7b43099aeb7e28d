"""``make compose-test``: the pair of docker-compose.yml loses nodes and links, and its client loses nothing.

Builds the images, starts everything as a user does (under a name of its own, on free ports), and then
kills, pauses, disconnects and stops what it can. After each event it looks at what the client printed, at the
state of both nodes and at Prometheus. At the end nothing but the images remains. Status 0 if all was as it
should be.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from compose import faults
from compose.commands import ComposeTestError, say
from compose.engine import Engine
from compose.images import prepare
from compose.stack import Load, Stack


def main() -> int:
    """Run all of it."""
    parser = argparse.ArgumentParser(prog="make compose-test", description=__doc__)
    parser.add_argument("--compose", help='the compose program, "docker compose" or "docker-compose"')
    parser.add_argument("--busy", action="store_true", help="timing for a machine that is busy otherwise")
    asked = parser.parse_args()
    # Told to end, it removes what it made as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bstar-compose-test"
    began = time.monotonic()
    try:
        with Engine(cache, asked.compose) as engine:
            images = prepare(engine)
            say("images: " + ", ".join(f"{name}={value}" for name, value in images.items()))
            _play(engine, images, busy=asked.busy)
            _play_chaos(engine, images, busy=asked.busy)
    except ComposeTestError as error:
        say(f"compose-test: {error}")
        return 1
    except KeyboardInterrupt:
        say("compose-test: interrupted; what it made is removed")
        return 130
    say(f"compose-test: all was as it should be, in {time.monotonic() - began:.0f} s")
    return 0


def _play(engine: Engine, images: dict[str, str], *, busy: bool) -> None:
    with Stack(engine, f"bstar-test-{os.getpid()}", images, busy=busy) as stack:
        begun = time.monotonic()
        stack.compose("build")
        say(f"built in {time.monotonic() - begun:.0f} s; starting everything")
        stack.compose("up", "--detach", "--no-build")
        stack.wait_healthy()
        say(f"both nodes are healthy {time.monotonic() - begun:.0f} s after the build began")
        load = Load(stack)
        try:
            faults.begins(stack, load)
            faults.is_locked_up(stack)
            faults.kill_of_the_active(stack, load)
            faults.pause_of_the_active(stack, load)
            faults.active_cut_off_from_its_clients(stack, load)
            faults.peer_link_cut(stack, load)
            faults.stop_of_the_active(stack, load)
            faults.change_of_all_containers(stack, load)
            faults.end_of_the_client(stack, load)
            faults.both_down(stack)
        finally:
            load.close()


def _play_chaos(engine: Engine, images: dict[str, str], *, busy: bool) -> None:
    with Stack(engine, f"bstar-chaos-{os.getpid()}", images, chaos=True, busy=busy) as stack:
        say("once more, with toxiproxy between the nodes")
        stack.compose("up", "--detach", "--no-build")
        stack.wait_healthy()
        load = Load(stack)
        try:
            faults.begins(stack, load)
            faults.link_through_toxiproxy(stack, load)
            faults.end_of_the_client(stack, load)
        finally:
            load.close()


if __name__ == "__main__":
    sys.exit(main())
