"""One node of a pair as a process: ``bstar serve`` with a configuration file, and the state it reports."""

from __future__ import annotations

import http.client
import json
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bstar.settings import RoleName
from bstar_broker.core.snapshot import NodeState
from bstar_testing.hosts import Host
from bstar_testing.processes import HarnessError, NoteTaker, Process, ignore_note

COMMAND = (sys.executable, "-m", "bstar_cli")
"""Runs the ``bstar`` of this installation."""

_HTTP_S_MAX = 2.0
_decode_state = msgspec.json.Decoder(NodeState).decode


class Node(Process):
    """One ``bstar serve``. ``config`` is its whole configuration, ``command`` what runs ``bstar``.

    ``name`` names its log and its files; without one it is the role.
    """

    def __init__(
        self,
        role: RoleName,
        config: Mapping[str, Any],
        *,
        folder: Path,
        host: Host | None = None,
        note: NoteTaker = ignore_note,
        command: Sequence[str] = COMMAND,
        name: str | None = None,
    ) -> None:
        name = name or role
        self.role: RoleName = role
        self.config = config
        self.endpoint: str = config["endpoints"]["clients"]
        self.state_endpoint: str = config["endpoints"]["state"]
        self.peer_state_endpoint: str = config["endpoints"]["peer_state"]
        self.http_address: str = config["http"]["bind"]
        self.config_path = folder / f"{name}.yaml"
        # JSON is YAML, so the file needs no writer of its own.
        self.config_path.write_text(json.dumps(config, indent=2))
        argv = (*command, "serve", "--config", str(self.config_path))
        super().__init__(name, argv, folder=folder, host=host, note=note)

    @property
    def http_url(self) -> str:
        """Where ``/status`` and ``/metrics`` are."""
        return f"http://{self.http_address}"

    def look(self) -> NodeState | None:
        """The node's state now; None if it does not answer."""
        if not self.is_running or self.is_paused:
            return None
        address, port = self.http_address.rsplit(":", 1)
        connection = http.client.HTTPConnection(address, int(port), timeout=_HTTP_S_MAX)
        try:
            connection.sock = self.host.connect((address, int(port)), _HTTP_S_MAX)
            connection.request("GET", "/status")
            response = connection.getresponse()
            return _decode_state(response.read()) if response.status == http.HTTPStatus.OK else None
        except (OSError, http.client.HTTPException):
            return None  # it is starting or gone
        finally:
            connection.close()

    def state(self) -> NodeState:
        """The node's state. A node that does not answer now gets time to."""
        return self.wait_for("answers", lambda state: True)

    def wait_ready(self) -> None:
        """Wait until the node answers."""
        self.state()

    def wait_for(self, what: str, happened: Callable[[NodeState], object]) -> NodeState:
        """Wait until the node's state fulfils a condition; returns that state."""
        last: NodeState | None = None

        def look() -> bool:
            nonlocal last
            state = self.look()
            last = state or last
            return state is not None and bool(happened(state))

        try:
            self.wait_until(look, what)
        except HarnessError as error:
            error.add_note(f"its last state: {last and last.pair}")
            raise
        assert last is not None
        return last

    def wait_for_state(self, *names: str) -> NodeState:
        """Wait until the node is in one of these states: PRIMARY, BACKUP, ACTIVE or PASSIVE."""
        return self.wait_for(" or ".join(names), lambda state: state.pair.state in names)

    def wait_for_workers(self, count: int) -> NodeState:
        """Wait until the node lists ``count`` workers."""
        return self.wait_for(f"{count} workers", lambda state: state.broker.workers == count)

    def wait_for_silence(self) -> None:
        """Wait until the node takes its peer for dead: the next request makes it active."""
        self.wait_for("its peer is silent", lambda state: state.pair.retry_after_s == 0)

    def forget(self) -> None:
        """Remove the state that the node keeps across restarts."""
        if self.config["state_dir"] is not None:
            shutil.rmtree(self.config["state_dir"], ignore_errors=True)
