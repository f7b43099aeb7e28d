"""An EventMQ job manager with real sockets and processes, at a router that acts as the published one does."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bstar.errors import ConfigurationError
from bstar.wire import emq
from bstar.wire.emq_jobs import NO_HEADERS, Headers, Job, decode_result, encode_job
from bstar_client.core.emq.manager import ManagerSettings
from bstar_client.emq import EmqJobManager, processes
from bstar_client.emq.child import run_job
from bstar_testing import wait_until
from support.emq_router import PublishedRouter, new_id

CALLS = "support.emq_calls"
# So that no test waits: a router that is not there is noticed at once.
TIMING = ManagerSettings((), heartbeat_s=0.05, silence_s=30.0, answer_s=30.0, pause_s=0.05)

pytestmark = pytest.mark.loopback


@contextmanager
def running(
    *routers: str, timing: ManagerSettings = TIMING, queues: Sequence[tuple[int, str]] = (), **options: Any
) -> Iterator[EmqJobManager]:
    """A manager in a thread; it drains at the end of the block."""
    given: dict[str, Any] = {"allow": [CALLS], "processes": 1, **options}
    with EmqJobManager(routers, timing=timing, queues=queues, **given) as manager:
        thread = threading.Thread(target=manager.run)
        thread.start()
        try:
            yield manager
        finally:
            manager.stop()
            thread.join()


def call(name: str, *arguments: object, path: str = CALLS, **more: Any) -> bytes:
    return encode_job(Job(path, name, list(arguments), **more))


def submit(router: PublishedRouter, job: bytes, headers: Headers = NO_HEADERS) -> bytes:
    msgid = new_id()
    router.submit(emq.Request(msgid, "default", job, headers))
    return msgid


def value_of(router: PublishedRouter, job: bytes, headers: Headers = NO_HEADERS) -> Any:
    return decode_result(router.result_of(submit(router, job, headers)))


@pytest.mark.requirement("EMQ-R-06")
def test_inform_ack_heartbeat_and_then_ready_for_each_process() -> None:
    """EMQ-R-06: at a router that answers, a manager becomes ready."""
    with PublishedRouter() as router, running(router.backend, processes=2, queues=[(20, "fast")]):
        router.wait_until(lambda: len(router.of(emq.Ready)) == 2)
        [inform] = router.of(emq.Inform)
        assert inform.queues == (emq.Queue(20, "fast"),)
        router.wait_until(lambda: len(router.of(emq.Heartbeat)) > 2)
        identities = {sender for sender, _ in router.heard}
        assert len(identities) == 1
        assert len(identities.pop().decode("ascii")) == 36


def test_results_exceptions_and_what_is_not_json() -> None:
    with PublishedRouter() as router, running(router.backend):
        assert value_of(router, call("add", 1, kwargs={"other": 2})) == 3
        counter = call("next", path=f"{CALLS}:Counter", class_args=[5], class_kwargs={"step": 2})
        assert value_of(router, counter) == 7
        assert value_of(router, call("fail", "no apples")) == "no apples"
        assert value_of(router, call("leave")) == "3"
        assert value_of(router, call("fail_oddly")) == "OddError"
        assert value_of(router, call("not_json")) == "Object of type set is not JSON serializable"
        large = "x" * 3_000_000
        assert value_of(router, call("echo", large)) == large
        # After each of them the process is ready.
        router.wait_until(lambda: list(router.slots.values()) == [1])


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (call("system", "true", path="os"), "does not allow module 'os'"),
        (call("system", "true"), "is no function or class of an allowed module but of posix"),
        (call("os"), "is no function or class"),
        (call("_private"), "is private"),
        (call("__init__", path=f"{CALLS}:Counter", class_args=[1]), "is private"),
        (call("read_text", path=f"{CALLS}:Path"), "is no function or class"),
        (call("add", path=f"{CALLS}:add"), "is no class"),
        (call("f", path="support.emq_calls.more"), "does not allow"),
        (call("nothing"), "has no attribute 'nothing'"),
        (b"{}", "the message is no job"),
    ],
)
def test_what_is_not_allowed_is_refused(job: bytes, text: str) -> None:
    """The child checks for itself, whatever its parent lets through."""
    assert text in decode_result(run_job(job, (CALLS,)))


def test_a_refused_job_is_answered_and_costs_no_process() -> None:
    with PublishedRouter() as router, running(router.backend) as manager:
        assert "does not allow module 'os'" in value_of(router, call("system", "true", path="os"))
        assert "no job" in value_of(router, b"[]")
        assert "is private" in value_of(router, call("_private"))
        assert value_of(router, call("add", 1)) == 1
        assert manager.refused == {"not-allowed": 1, "job": 1}


def test_many_refused_jobs_that_waited_are_answered_one_after_the_other(tmp_path: Path) -> None:
    """Each one was answered within the answer of the one before: some hundreds ended the manager."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with PublishedRouter() as router, running(router.backend) as manager:
        submit(router, call("wait_for", str(fifo)))
        with fifo.open("w") as writer:  # opens when the job reads
            [name] = router.slots
            refused = call("system", "true", path="os")
            for _ in range(900):
                router.send(name, emq.Request(new_id(), "default", refused, NO_HEADERS))
            wait_until(lambda: len(manager._session._waiting) == 900, "all wait")
            writer.write("done")
        router.wait_until(lambda: len(router.of(emq.Reply)) == 901)
        assert value_of(router, call("add", 1)) == 1


def test_a_job_beyond_its_time_is_killed_with_what_it_started(tmp_path: Path) -> None:
    left = tmp_path / "pid"
    with PublishedRouter() as router, running(router.backend) as manager:
        before = value_of(router, call("pid"))
        # A second is enough for the grandchild to be there, and if not, there is nothing to kill.
        job = call("hang_with_a_child", str(left))
        assert value_of(router, job, Headers(timeout_s=1)) == "TimeoutError"
        assert value_of(router, call("pid")) != before
        assert manager.ends == {"timeout": 1}
    if left.exists():
        grandchild = int(left.read_text())
        wait_until(lambda: not is_alive(grandchild), "what the job started is gone")


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_default_time_limit_is_the_managers() -> None:
    with PublishedRouter() as router, running(router.backend, timeout_s=0.2):
        assert value_of(router, call("hang")) == "TimeoutError"


def test_a_job_with_a_timeout_of_zero_has_no_time_limit(tmp_path: Path) -> None:
    """Jobs that began after it, with the manager's limit, are killed; it still runs."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with PublishedRouter() as router, running(router.backend, processes=2, timeout_s=0.2):
        free = submit(router, call("wait_for", str(fifo)), Headers(timeout_s=0))
        for _ in range(3):
            assert value_of(router, call("hang")) == "TimeoutError"
        fifo.write_text("done")
        assert decode_result(router.result_of(free)) == "done"


def test_a_process_that_dies_is_replaced_and_its_job_answered() -> None:
    with PublishedRouter() as router, running(router.backend) as manager:
        assert value_of(router, call("die")) == "the job's process ended before the job did: exit code 3"
        crashed = value_of(router, call("crash"))
        assert crashed == f"the job's process ended before the job did: exit code {-signal.SIGSEGV}"
        assert value_of(router, call("add", 1)) == 1
        assert manager.ends == {"died": 2}


def test_a_process_is_replaced_after_so_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "JOBS_OF_A_PROCESS_MAX", 2)
    with PublishedRouter() as router, running(router.backend) as manager:
        first, second, third = (value_of(router, call("pid")) for _ in range(3))
        assert first == second != third
        assert manager.ends == {"retired": 1}


def test_a_machine_without_a_descriptor_gets_its_processes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = socket.socketpair, iter([OSError("too many open files")])

    def pair_of_sockets() -> tuple[socket.socket, socket.socket]:
        for error in failures:
            raise error
        return real()

    with PublishedRouter() as router:
        monkeypatch.setattr(processes, "_PAUSE_S", 0.01)
        monkeypatch.setattr(
            processes, "socket", SimpleNamespace(**{**vars(socket), "socketpair": pair_of_sockets})
        )
        with running(router.backend) as manager:
            assert value_of(router, call("add", 1)) == 1
            assert manager.ends == {"died": 1}


def test_an_idle_process_that_is_killed_is_replaced() -> None:
    with PublishedRouter() as router, running(router.backend):
        os.kill(value_of(router, call("pid")), signal.SIGKILL)
        # Whether the job comes before or after the news of the death, it is answered.
        answer = value_of(router, call("add", 1))
        assert answer == 1 or answer.startswith("the job's process ")
        assert value_of(router, call("add", 1)) == 1


@pytest.mark.requirement("EMQ-W-01")
def test_a_router_that_is_gone_is_replaced_by_the_next_one() -> None:
    """EMQ-W-01: it begins again, at the pair's other node, and comes back."""
    with PublishedRouter() as first, PublishedRouter() as second, running(first.backend, second.backend):
        assert value_of(first, call("add", 1)) == 1
        first.close()
        assert value_of(second, call("add", 2)) == 2
        first.open()
        second.close()
        assert value_of(first, call("add", 3)) == 3
        informs = [sender for sender, message in first.heard if isinstance(message, emq.Inform)]
        assert len(set(informs)) == 2


@pytest.mark.requirement("EMQ-R-05")
def test_a_stop_finishes_the_running_job_and_says_kbye(tmp_path: Path) -> None:
    """EMQ-R-05: the result first, KBYE after it."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with PublishedRouter() as router:
        with running(router.backend) as manager:
            msgid = submit(router, call("wait_for", str(fifo)))
            with fifo.open("w") as writer:  # opens when the job reads
                manager.stop()
                writer.write("done")
            assert decode_result(router.result_of(msgid)) == "done"
            router.wait_until(lambda: router.of(emq.Goodbye))
        kinds = [type(message) for _, message in router.heard]
        assert kinds.index(emq.Reply) < kinds.index(emq.Goodbye)


def test_a_drain_has_its_limit() -> None:
    with PublishedRouter() as router:
        with running(router.backend, drain_s=0.1):
            submit(router, call("hang"))
            router.wait_until(lambda: list(router.slots.values()) == [0] and router.of(emq.Ready))
        router.wait_until(lambda: router.of(emq.Goodbye))
        assert router.of(emq.Reply) == []


def test_octets_that_are_no_message_change_nothing() -> None:
    with PublishedRouter() as router, running(router.backend) as manager:
        router.wait_until(lambda: router.of(emq.Ready))
        [worker] = router.slots
        for frames in ([b"x"], [b"", b"eMQP/1.0"], [b"", b"eMQP/1.0", b"REQUEST", b"m", b"\xff"], [b""] * 50):
            router.send_frames(worker, frames)
        assert value_of(router, call("add", 1)) == 1
        assert manager.drops.total() == 4


def test_a_router_behind_which_is_something_else_is_given_up() -> None:
    """A port that hangs up at once."""
    with socket.create_server(("127.0.0.1", 0)) as listener, PublishedRouter() as router:
        port = listener.getsockname()[1]

        def hang_up() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with running(f"tcp://127.0.0.1:{port}", router.backend):
            assert value_of(router, call("add", 1)) == 1
        thread.join()


@pytest.mark.parametrize(
    ("routers", "options", "text"),
    [
        ([], {}, "one at least"),
        (["nowhere"], {}, "not an endpoint"),
        (["tcp://127.0.0.1:1"], {"allow": []}, "allow names no module"),
        (["tcp://127.0.0.1:1"], {"processes": 0}, "processes is 0"),
        (["tcp://127.0.0.1:1"], {"timeout_s": 0}, "timeout_s must be above 0"),
        (["tcp://127.0.0.1:1"], {"colour": 1}, "colour"),
        (["tcp://127.0.0.1:1"], {"queues": [("fast", 10)]}, "job manager: "),
    ],
)
def test_wrong_options_are_configuration_errors(
    routers: list[str], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        EmqJobManager(routers, **{"allow": [CALLS], **options})
