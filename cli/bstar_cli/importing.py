"""Finds what ``MODULE:NAME`` of a command line names, from the current folder on."""

import importlib
import sys
import traceback

import bstar
import bstar_client
from bstar.errors import ConfigurationError

_OURS = tuple(path for package in (bstar, bstar_client) for path in package.__path__)


def imported(name: str, what: str) -> object:
    """The object that ``name`` names. ConfigurationError, which calls it ``what``, if it cannot be had."""
    module_name, separator, path = name.partition(":")
    if not separator or not module_name or not path:
        raise ConfigurationError(f"{name!r} is no {what}: write module:name")
    if "/" in module_name or module_name.endswith(".py"):
        raise ConfigurationError(f"{name!r} names a file: name its module, such as shop:{path}")
    # As python -m does, so that a module is found where its author stands.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: object = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # Whatever the module does while it is imported is its author's to mend.
        raise ConfigurationError(f"the {what} {name!r} cannot be imported: {_reason_of(error)}") from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise ConfigurationError(f"the {what} {name!r} is not there: {error}") from error
    return found


def _reason_of(error: BaseException) -> str:
    """What went wrong during an import, and where."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    # The author's line, not ours that refuses what it says.
    while frames and frames[-1].filename.startswith(_OURS):
        frames.pop()
    # An import that finds nothing fails in the machinery, which says it all.
    where = frames[-1] if frames and not frames[-1].filename.startswith("<frozen") else None
    text = f"{type(error).__name__}: {error}"
    return text if where is None else f"{text} ({where.filename}, line {where.lineno})"
