"""The commands of EventMQ, as processes and as functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from bstar.wire import emq
from bstar.wire.emq_jobs import Job, decode_result, encode_job
from bstar_cli.main import main
from support.emq_admin import admin_socket
from support.emq_router import PublishedRouter, new_id
from support.talking import Program

JOBS = "def greet(name):\n    return f'hello {name}'\n"


@pytest.mark.loopback
def test_a_job_manager_by_its_file_and_by_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shopjobs.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    with PublishedRouter() as router:
        file = tmp_path / "manager.yaml"
        file.write_text(
            f"routers: [{router.backend}]\nallow: [shopjobs]\nqueues: [[5, mail]]\nprocesses: 9\n"
        )
        command = ["-m", "bstar_cli", "emq-jobmanager"]
        with Program(*command, "--config", str(file), "--processes", "1") as program:
            program.wait_for(lambda line: "registered" in line)
            msgid = new_id()
            router.submit(emq.Request(msgid, "mail", encode_job(Job("shopjobs", "greet", ["Ada"]))))
            assert decode_result(router.result_of(msgid)) == "hello Ada"
            router.wait_until(lambda: list(router.slots.values()) == [1])
            assert program.terminate() == 0
        assert router.of(emq.Inform)[0].queues == (emq.Queue(5, "mail"),)
        assert router.of(emq.Goodbye)
    with PublishedRouter(wire=emq.Wire.SPECIFICATION) as router:
        options = ["--router", router.backend, "--allow", "shopjobs", "--queues", "20:fast,10:default"]
        with Program(*command, *options, "--wire", "specification") as program:
            router.wait_until(lambda: list(router.slots.values()) == [4])
            assert program.terminate() == 0
        assert router.of(emq.Inform)[0].queues == (emq.Queue(20, "fast"), emq.Queue(10, "default"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ([], "no router"),
        (["--router", "tcp://127.0.0.1:1"], "add --allow MODULE"),
        (["--router", "here", "--allow", "m"], "not an endpoint"),
        (["--router", "tcp://127.0.0.1:1", "--allow", "m", "--queues", "fast:10"], "write WEIGHT:NAME"),
        (["--config", "nowhere.yaml"], "cannot be read"),
    ],
)
def test_wrong_options_of_a_job_manager(
    options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emq-jobmanager", *options]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("colour: red\n", "manager.yaml:1: colour: unknown key"),
        ("routers: tcp://127.0.0.1:1\nallow: [m]\n", "list of endpoints"),
        ("routers: 7\nallow: [m]\n", "no router"),
        ("routers: [7]\nallow: [m]\n", "list of endpoints"),
        ("routers: ['tcp://127.0.0.1:1']\nallow: [m]\nqueues: fast\n", "queues"),
        ("routers: ['tcp://127.0.0.1:1']\nallow: [m]\nprocesses: many\n", "processes"),
    ],
)
def test_a_wrong_configuration_of_a_job_manager(
    content: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "manager.yaml"
    file.write_text(content)
    assert main(["emq-jobmanager", "--config", str(file)]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.loopback
def test_an_admin_prints_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    report = b'{"connected_workers": {"w\\u001b1": {"available_slots": 2}}, "connected_queues": {}}'
    with admin_socket(report) as (endpoint, _):
        assert main(["emq-admin", "workers", endpoint, "--timeout", "30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["connected_workers:", '  w\\x1b1  {"available_slots":2}', "connected_queues: none"]
    with admin_socket(report) as (endpoint, _):
        assert main(["emq-admin", "workers", endpoint, "--timeout", "30", "--json"]) == 0
    assert '"available_slots":2' in capsys.readouterr().out


def test_an_admin_without_an_answer_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emq-admin", "status", "tcp://127.0.0.1:9", "--timeout", "0.2"]) == 3
    assert "is it the admin socket" in capsys.readouterr().err
