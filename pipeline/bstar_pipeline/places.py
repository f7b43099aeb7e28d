"""Where files are, for what opens them without Spark: paths, URIs and patterns, spelled as Spark does.

``file:/a b`` and ``/a b`` name the same directory, and ``%20`` stands for itself. Other schemes are those of
pyarrow's file systems; a name that only Spark's connectors know is refused before anything is opened.
"""

import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self
from urllib.parse import quote

import msgspec
import pyarrow.fs

from bstar.errors import ConfigurationError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_REMOTE = ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
# What Spark's connectors are called, and what pyarrow calls the same store.
_OTHER_NAMES = {"s3a": "s3", "s3n": "s3"}
_SPECIAL = frozenset("*?[{\\")
# Innermost, so that choices may stand within choices.
_CHOICE = re.compile(r"(?<!\\)\{((?:[^{}\\]|\\.)*)\}")


class Place(msgspec.Struct, frozen=True):
    """A file or directory: ``path`` in the file system of ``base`` (a URI), or of this machine ("")."""

    base: str
    path: str

    @classmethod
    def of(cls, told: str) -> Self:
        """The place that a path or URI names; patterns are taken literally. Raises ConfigurationError."""
        found = _SCHEME.match(told)
        if found is None:
            if not told:
                raise ConfigurationError("an empty path names no file")
            return cls("", str(Path(told).resolve()))
        scheme, rest = found[1].lower(), found[2]
        if scheme == "file":
            return cls("", str(Path(_local(told, rest)).resolve()))
        if scheme not in _REMOTE or not rest.startswith("//"):
            raise ConfigurationError(_why_not(told, scheme))
        host, slash, path = rest[2:].partition("/")
        path, mark, query = path.partition("?")
        return cls(f"{scheme}://{host}{mark}{query}", (slash + path).rstrip("/"))

    def opened(self) -> tuple[pyarrow.fs.FileSystem, str]:
        """Its file system, and its path there."""
        if not self.base:
            return pyarrow.fs.LocalFileSystem(), self.path
        host, mark, query = self.base.partition("?")
        system, path = pyarrow.fs.FileSystem.from_uri(f"{host}{quote(self.path)}{mark}{query}")
        return system, path

    def at(self, path: str) -> Self:
        """The place at ``path``, which the file system told, in the same file system."""
        if self.base.startswith(("hdfs:", "viewfs:")) or not self.base:
            return msgspec.structs.replace(self, path=path)
        # Stores of objects have the bucket in the path.
        return msgspec.structs.replace(self, path="/" + path.partition("/")[2])

    def __str__(self) -> str:
        """As it is shown: without what only opens the file system."""
        return self.base.partition("?")[0] + self.path


def matching(told: str) -> Iterator[Place]:
    """The files and directories that a path, URI or pattern names, as Hadoop's patterns do.

    ``*`` and ``?`` stay within a name, ``[a-c]`` and ``[^a]`` are letters, ``{a,b}`` either of these, and a
    backslash takes the next letter as it is.
    """
    place = Place.of(told)
    if not _SPECIAL.intersection(place.path):
        yield place
        return
    for one in _alternatives(place.path):
        names = one.split("/")
        first = next((at for at, name in enumerate(names) if _SPECIAL.intersection(name)), len(names))
        root = msgspec.structs.replace(place, path="/".join(names[:first]) or "/")
        yield from _below(root, names[first:])


def _below(root: Place, names: list[str]) -> Iterator[Place]:
    system, inner = root.opened()
    if not names:
        if system.get_file_info(inner).type != pyarrow.fs.FileType.NotFound:
            yield root
        return
    wanted = _regex(names[0])
    infos = system.get_file_info(pyarrow.fs.FileSelector(inner, allow_not_found=True))
    for info in sorted(infos, key=lambda info: str(info.path)):
        if wanted.fullmatch(info.base_name) and (info.type == pyarrow.fs.FileType.Directory or not names[1:]):
            yield from _below(root.at(info.path), names[1:])


def _alternatives(pattern: str) -> Iterator[str]:
    """The pattern once for each choice in its braces, which may hold slashes."""
    choice = _CHOICE.search(pattern)
    if choice is None:
        yield pattern
        return
    for one in choice[1].split(","):
        yield from _alternatives(pattern[: choice.start()] + one + pattern[choice.end() :])


def _regex(name: str) -> re.Pattern[str]:
    """One name of a pattern without choices."""
    # Here "not" is another letter, and a letter is taken as it is in brackets.
    spelled = re.sub(r"\\(.)", lambda match: f"[{match[1]}]" if match[1] in "*?[" else match[1], name)
    return re.compile(fnmatch.translate(spelled.replace("[^", "[!")))


def _local(told: str, rest: str) -> str:
    host, slash, path = (
        rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest.removeprefix("/"))
    )
    if host not in ("", "localhost") or not slash or not rest.startswith("/"):
        raise ConfigurationError(
            f"{told} is no path of this machine: file:/directory is, or file:///directory"
        )
    return f"/{path}"


def _why_not(told: str, scheme: str) -> str:
    if scheme in _REMOTE:
        return f"{told} is no URI: {scheme}://… is followed by a host or bucket and a path"
    known = ", ".join(f"{name}://" for name in ("file", *_REMOTE))
    if scheme in _OTHER_NAMES:
        other = _OTHER_NAMES[scheme]
        return f"{told}: format('bstar') opens files by pyarrow, which calls {scheme}:// {other}://"
    return f"{told}: format('bstar') opens no {scheme}: files. It knows paths of this machine, and {known}"
