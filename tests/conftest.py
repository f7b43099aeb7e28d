"""Fixtures that several test modules share live in tests/support.

A test without a marker is a unit test: one that starts a process, opens a connection or sleeps fails here.
"""

import asyncio
import atexit
import gc
import inspect
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest
from hypothesis import settings

# How long one example takes says nothing on a machine that does other things as well.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")

pytest_plugins = [
    "support.broker_fixtures",
    "support.client_desk",
    "support.planted_root",
    "support.schedule",
    "support.spark_fixtures",
    "support.zygote",
    "bstar_testing.plugin",
]

# The audit events of what takes time that is not the test's own.
_FORBIDDEN = frozenset(
    ("subprocess.Popen", "os.fork", "os.posix_spawn", "socket.bind", "socket.connect", "time.sleep")
)
_MARKERS = ("loopback", "spark", "storm")
_unit_tests_running: list[str] = []


def _refuse(event: str, _: object) -> None:
    if _unit_tests_running and event in _FORBIDDEN:
        raise AssertionError(f"{event} in a unit test: mark {_unit_tests_running[-1]} as loopback")


sys.addaudithook(_refuse)

# To rewrite the assertions of all modules takes four times as long as to collect their tests, so pytest keeps
# what it wrote.
sys.dont_write_bytecode = False

# Collection makes a million objects that stay. To look through them for cycles again and again takes 3 of
# 11 s of CPU, and 11 of 29 where assertions are rewritten, in each process.
gc.disable()

# A shell that starts the tests in the background lets them ignore Ctrl-C, and their processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl
def pytest_collection_finish() -> None:
    """From here on cycles are collected, but not among what collection has made.

    Pytest looks for cycles at its end, again and again, which took a third of the CPU of a collection.
    """
    gc.freeze()
    gc.enable()
    # Python itself looks once: what nanobind still finds then, as of duckdb, it reports as leaked.
    atexit.register(gc.unfreeze)


def _needs_more(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in _MARKERS)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine in an event loop of its own. It gets what its asynchronous fixtures give there."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run() -> None:
        async with AsyncExitStack() as opened:
            given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
            for name, value in given.items():
                if isinstance(value, AbstractAsyncContextManager):
                    given[name] = await opened.enter_async_context(value)
            await pyfuncitem.obj(**given)

    asyncio.run(run(), debug=False)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Forbid what a unit test may not do, for as long as one runs."""
    if _needs_more(item):
        return (yield)
    _unit_tests_running.append(item.nodeid)
    try:
        return (yield)
    finally:
        _unit_tests_running.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """What ends with the session is no part of its last test: Spark's session asks its JVM to stop."""
    if nextitem is None:
        _unit_tests_running.clear()
