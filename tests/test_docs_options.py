"""Every option of clients and workers is explained: in the class, and on a page for developers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from bstar_client import (
    Ask,
    AsyncHAClient,
    AsyncWorker,
    HAClient,
    LinkSettings,
    ReplyMemory,
    RetryPolicy,
    Task,
    Worker,
)
from bstar_client.sync.durable import DurableCalls
from bstar_client.workers.reply_file import ReplyFile

PAGE = (Path(__file__).parents[1] / "docs" / "clients.md").read_text()
# Not for programs: the tests' own time.
NOT_FOR_USERS = {"clock"}


def options(explained: type) -> set[str]:
    return set(inspect.signature(explained).parameters) - NOT_FOR_USERS


@pytest.mark.parametrize(
    "explained", [HAClient, AsyncHAClient, Worker, AsyncWorker, LinkSettings, ReplyMemory, ReplyFile]
)
def test_the_page_has_every_option(explained: type) -> None:
    given = {"endpoints", "service", "handler", "path"}  # told in the text, as what comes first
    missing = [
        name for name in options(explained) - given if re.search(rf"`[^`]*\b{name}\b[^`]*`", PAGE) is None
    ]
    assert not missing


@pytest.mark.parametrize("explained", [HAClient, Worker, LinkSettings, ReplyMemory, ReplyFile, Ask])
def test_the_class_explains_every_option(explained: type) -> None:
    text = explained.__doc__ or ""
    missing = [name for name in options(explained) if re.search(rf"\b{name}\b", text) is None]
    assert not missing


def test_a_twin_has_no_option_of_its_own() -> None:
    assert options(AsyncHAClient) == options(HAClient)
    assert options(AsyncWorker) <= options(Worker)
    assert "``Worker``'s and mean the same" in (AsyncWorker.__doc__ or "")


def test_the_page_of_durable_requests_has_every_method_and_option() -> None:
    page = (Path(__file__).parents[1] / "docs" / "durable.md").read_text()
    methods = {name for name in vars(DurableCalls) if not name.startswith("_")}
    names = methods | set(inspect.signature(Task).parameters) - {"body"}
    names |= set(inspect.signature(RetryPolicy).parameters)
    assert [name for name in sorted(names) if re.search(rf"`[^`]*\b{name}\b[^`]*`", page) is None] == []


@pytest.mark.parametrize("name", sorted(name for name in vars(DurableCalls) if not name.startswith("_")))
def test_every_argument_of_a_durable_call_is_explained(name: str) -> None:
    text = (getattr(HAClient, name).__doc__ or "") + (DurableCalls.__doc__ or "")
    plain = {"self", "service", "request_id", "body", "bodies"}
    inherited = {"older"} if name == "dead_letters" else set()
    missing = set(inspect.signature(getattr(HAClient, name)).parameters) - plain - inherited
    assert [each for each in sorted(missing) if each not in text] == []


@pytest.mark.parametrize("name", ["request", "stream", "map", "discover", "services"])
def test_every_argument_of_a_call_is_explained(name: str) -> None:
    method = getattr(HAClient, name)
    text = (method.__doc__ or "") + (HAClient.__doc__ or "")
    plain = {"self", "service"}
    missing = [each for each in set(inspect.signature(method).parameters) - plain if each not in text]
    assert not missing
