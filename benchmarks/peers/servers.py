"""Servers of others, each a process of ours on free ports of the loopback interface that ends with its block.

RabbitMQ needs two processes: Erlang's port mapper is started here, too, because the one that RabbitMQ would
start listens on every address and outlives it.
"""

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_START_S_MAX = 90.0
_STOP_S_MAX = 30.0
# Characters of its output that are shown if it does not come up.
_SAID_MAX = 2_000


class NotUp(Exception):  # noqa: N818 - that it is an error goes without saying
    """A server of others does not come up; the text says what it printed."""


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago. These servers take no held one."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return int(holder.getsockname()[1])


@contextmanager
def nats(program: str, folder: Path) -> Iterator[tuple[int, str]]:
    """A NATS server; its pid and URL."""
    port = free_port()
    command = [program, "--addr", "127.0.0.1", "--port", str(port), "--log", str(folder / "nats.log")]
    with _process("nats-server", command, folder, port) as pid:
        yield pid, f"nats://127.0.0.1:{port}"


@contextmanager
def rabbitmq(program: str, epmd: str, folder: Path) -> Iterator[tuple[int, str]]:
    """A RabbitMQ node; the pid of its Erlang machine, and its URL."""
    port, mapper, distribution = (free_port() for _ in range(3))
    home = folder / "rabbitmq"
    home.mkdir()
    (home / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
    (home / "enabled_plugins").write_text("[].\n")
    environment = {
        "HOME": str(home),  # its cookie
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(mapper),
        "RABBITMQ_NODENAME": f"bench-{os.getpid()}@localhost",
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        # So that the script becomes the Erlang machine instead of its parent.
        "RABBITMQ_ALLOW_INPUT": "true",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            "-noinput -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"
        ),
    }
    with (
        _process("epmd", [epmd, "-address", "127.0.0.1", "-port", str(mapper)], folder, mapper),
        _process("rabbitmq-server", [program], folder, port, environment) as pid,
    ):
        yield pid, f"amqp://guest:guest@127.0.0.1:{port}/%2F?heartbeat=0"


@contextmanager
def _process(
    name: str, command: list[str], folder: Path, port: int, environment: dict[str, str] | None = None
) -> Iterator[int]:
    """Run it until the end of the block; its pid once it listens on the port. NotUp if it does not."""
    path = folder / f"{name}.out"
    with path.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **(environment or {})},
        )
    try:
        until = time.monotonic() + _START_S_MAX
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > until:
                said = path.read_text(errors="replace").strip()[-_SAID_MAX:] or "it said nothing"
                raise NotUp(f"{name} does not come up: {said}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
