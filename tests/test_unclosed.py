"""A client or worker that nobody closes hangs nobody, at a collection or at the exit, and is told of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.scripted import WAIT_S, ScriptedBroker

pytestmark = pytest.mark.loopback

HEAD = """
import asyncio, gc, os, sys, threading, time
from bstar_client import AsyncHAClient, AsyncWorker, HAClient, Worker
ENDPOINT = sys.argv[1]
async def ask(client):
    assert (await client.request("echo", b"x")).body == b"x"
async def handle(request):
    return request.body
async def serve(worker):
    worker.start()
    while not worker.counters.registrations:
        await asyncio.sleep(0.01)
def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("bstar")]
import logging
logging.getLogger("bstar_client.endpoints").setLevel("ERROR")  # one node is right here
"""

# What is warned of, and the program.
PROGRAMS = {
    "asyncio client, collected": (
        "AsyncHAClient",
        """
async def main():
    await ask(AsyncHAClient(ENDPOINT))
asyncio.run(main())
gc.collect()
""",
    ),
    "asyncio client, kept until the exit": (
        "AsyncHAClient",
        """
client = AsyncHAClient(ENDPOINT)
asyncio.run(ask(client))
""",
    ),
    "asyncio client, in a loop that is not closed": (
        "AsyncHAClient",
        """
def main():
    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask(AsyncHAClient(ENDPOINT)))
main()
gc.collect()
""",
    ),
    "asyncio client, its loop in another thread at the exit": (
        "AsyncHAClient",
        """
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
client = AsyncHAClient(ENDPOINT)
asyncio.run_coroutine_threadsafe(ask(client), loop).result()
""",
    ),
    "client, collected": (
        "HAClient",
        """
def main():
    HAClient(ENDPOINT).request("echo", b"x")
main()
gc.collect()
until = time.monotonic() + 60
while threads() and time.monotonic() < until:
    time.sleep(0.01)
assert not threads()
""",
    ),
    "client, never used": ("HAClient", "HAClient(ENDPOINT)\ngc.collect()\n"),
    "client, kept until the exit": (
        "HAClient",
        """
client = HAClient(ENDPOINT)
client.request("echo", b"x")
""",
    ),
    "client, with a stream that nobody reads": (
        "HAClient",
        """
client = HAClient(ENDPOINT)
stream = client.stream("echo", b"x")
""",
    ),
    "worker, at the exit": (
        "Worker",
        """
worker = Worker(ENDPOINT, "echo", lambda request: request.body).start()
while not worker.counters.registrations:
    time.sleep(0.01)
""",
    ),
    "asyncio worker, in a loop that is closed": (
        "AsyncWorker",
        """
loop = asyncio.new_event_loop()
def main():
    loop.run_until_complete(serve(AsyncWorker(ENDPOINT, "echo", handle)))
main()
loop.close()
gc.collect()
""",
    ),
    "asyncio worker, kept until the exit": (
        "AsyncWorker",
        """
loop = asyncio.new_event_loop()
worker = AsyncWorker(ENDPOINT, "echo", handle)
loop.run_until_complete(serve(worker))
""",
    ),
}


def run(arguments: list[str], **options: object) -> tuple[int, str, str]:
    process = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=3 * WAIT_S,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    return process.returncode, process.stdout, process.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_whoever_does_not_close_is_warned_and_nothing_hangs(name: str) -> None:
    kind, program = PROGRAMS[name]
    with ScriptedBroker() as broker:
        code, told, warned = run(["-X", "dev", "-c", f"{HEAD}{program}print('whole')", broker.endpoint])
        assert (code, told) == (0, "whole\n"), warned
        lines = [line for line in warned.splitlines() if "was not closed" in line]
        assert len(lines) == 1, warned
        assert f"ResourceWarning: {kind}({broker.endpoint})" in lines[0]
        assert "close()" in lines[0]
        # No socket or context that a program has never heard of.
        assert "nclosed context" not in warned
        assert "nclosed socket" not in warned


CLOSED = """
async def main():
    async with AsyncHAClient(ENDPOINT) as client:
        await ask(client)
    async with AsyncWorker(ENDPOINT, "echo", handle):
        pass
    AsyncWorker(ENDPOINT, "echo", handle).start()  # asyncio.run cancels it, and it leaves
    await asyncio.sleep(0)
    AsyncHAClient(ENDPOINT)  # never used: it has opened nothing
asyncio.run(main())
with HAClient(ENDPOINT) as client:
    client.request("echo", b"x")
with Worker(ENDPOINT, "echo", lambda request: request.body):
    pass
Worker(ENDPOINT, "echo", lambda request: request.body)
gc.collect()
"""


def test_nobody_who_closes_is_warned() -> None:
    with ScriptedBroker() as broker:
        code, _, warned = run(["-X", "dev", "-W", "error", "-c", f"{HEAD}{CLOSED}", broker.endpoint])
        assert (code, warned) == (0, "")


FORKED = """
client = HAClient(ENDPOINT)
client.request("echo", b"x")
child = os.fork()
if not child:
    del client
    gc.collect()
    sys.exit(7)
assert os.waitpid(child, 0)[1] == 7 << 8
client.request("echo", b"x")
client.close()
"""


def test_a_forked_child_does_not_end_the_client_of_its_parent() -> None:
    with ScriptedBroker() as broker:
        code, _, warned = run(["-W", "error::ResourceWarning", "-c", f"{HEAD}{FORKED}", broker.endpoint])
        assert (code, warned) == (0, "")


# pytest imports tracemalloc when it tells of the first one; a collection within that import would tell of the
# second one while the module is half made. It ignores warnings while it reads a failed test's source, so the
# one that is in a cycle is collected before that.
TESTS = """
import asyncio
import gc
import tracemalloc
from bstar_client import AsyncHAClient, HAClient

def test_asyncio():
    async def main():
        await AsyncHAClient("{endpoint}").request("echo", b"x")
    asyncio.run(main())
    gc.collect()

def test_threads():
    HAClient("{endpoint}").request("echo", b"x")
"""


def test_a_run_of_pytest_that_leaves_clients_open_ends_and_tells(tmp_path: Path) -> None:
    with ScriptedBroker() as broker:
        tests = tmp_path / "test_leaks.py"
        tests.write_text(TESTS.format(endpoint=broker.endpoint))
        options = ["-p", "no:cacheprovider", "-p", "no:randomly", "-W", "error"]
        code, told, warned = run(["-m", "pytest", *options, str(tests)], cwd=tmp_path)
        told += warned  # what is collected after the last test
        assert code == 1, told
        assert f"AsyncHAClient({broker.endpoint}) was not closed" in told, told
        assert f" HAClient({broker.endpoint}) was not closed" in told
