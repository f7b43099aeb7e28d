"""Every option of clients and workers is explained: in the class, and on a page for developers."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from bstar_client import Ask, AsyncHAClient, AsyncWorker, HAClient, LinkSettings, ReplyMemory, Worker
from bstar_client.reply_file import ReplyFile

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


@pytest.mark.parametrize(
    ("twin", "of"), [(AsyncHAClient, HAClient), (AsyncWorker, Worker)], ids=["client", "worker"]
)
def test_a_twin_has_no_option_of_its_own_and_says_whose_they_are(twin: type, of: type) -> None:
    assert options(twin) <= options(of)
    assert f"``{of.__name__}``'s and mean the same" in (twin.__doc__ or "")


@pytest.mark.parametrize("name", ["request", "stream", "map", "discover", "services"])
def test_every_argument_of_a_call_is_explained(name: str) -> None:
    method = getattr(HAClient, name)
    text = (method.__doc__ or "") + (HAClient.__doc__ or "")
    plain = {"self", "service"}
    missing = [each for each in set(inspect.signature(method).parameters) - plain if each not in text]
    assert not missing
