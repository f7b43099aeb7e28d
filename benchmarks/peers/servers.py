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
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Certificate:
    """Files of a server's certificate, which is its own authority, and of its key."""

    path: Path
    key_path: Path


def make_certificate(folder: Path) -> Certificate:
    """A certificate for 127.0.0.1, on the curve P-256. NotUp without openssl."""
    made = Certificate(folder / "server.pem", folder / "server-key.pem")
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(made.key_path), "-out", str(made.path)),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotUp("openssl, which makes its certificate, is not installed") from None
    if done.returncode != 0:
        raise NotUp(f"openssl makes no certificate: {done.stderr.strip()[-_SAID_MAX:]}")
    return made


@contextmanager
def nats(program: str, folder: Path, certificate: Certificate | None = None) -> Iterator[tuple[int, str]]:
    """A NATS server; its pid and URL. With a certificate it takes TLS connections only."""
    port = free_port()
    name, scheme = ("nats-server", "nats") if certificate is None else ("nats-server-tls", "tls")
    command = [program, "--addr", "127.0.0.1", "--port", str(port), "--log", str(folder / f"{name}.log")]
    if certificate is not None:
        command += ["--tls", "--tlscert", str(certificate.path), "--tlskey", str(certificate.key_path)]
    with _process(name, command, folder, port) as pid:
        yield pid, f"{scheme}://127.0.0.1:{port}"


@contextmanager
def jetstream(program: str, folder: Path) -> Iterator[tuple[int, str, bool]]:
    """A NATS server with JetStream; its pid, its URL, and whether it syncs each message to the disk.

    Versions before 2.10 cannot: they sync every two minutes.
    """
    port = free_port()
    path = folder / "jetstream.conf"
    text = f'listen: "127.0.0.1:{port}"\njetstream {{\n  store_dir: "{folder / "jetstream"}"\n'
    path.write_text(text + "  sync_interval: always\n}\n")
    test = subprocess.run([program, "-t", "-c", str(path)], capture_output=True, text=True, check=False)
    if test.returncode != 0:
        path.write_text(text + "}\n")
    command = [program, "-c", str(path), "--log", str(folder / "jetstream.log")]
    with _process("nats-server-jetstream", command, folder, port) as pid:
        yield pid, f"nats://127.0.0.1:{port}", test.returncode == 0


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
