"""CURVE keys in files: a secret one that only its owner may read, a public one for all.

``NAME.key`` holds the key's name, the public and the secret half; ``NAME.pub`` the name and the public half.
A half is 40 characters of Z85 (32/Z85). No text of an error, log or ``repr`` shows a secret half.
"""

import os
import re
from pathlib import Path

import msgspec
import zmq

from bstar.errors import ConfigurationError
from bstar.security.files import read_small
from bstar.security.principals import is_public_key

NAME_CHARS_MAX = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_CHARS_MAX - 1}}}")
_FILE_BYTES_MAX = 4_096
_LINE = re.compile(r"(name|public|secret):[ \t]*(\S+)[ \t]*")


class KeyPair(msgspec.Struct, frozen=True):
    """A key by its name: both halves in Z85, 40 bytes each."""

    name: str
    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        """Without the secret half."""
        return f"KeyPair({self.name!r}, public={self.public.decode()!r})"


def new_key(name: str) -> KeyPair:
    """Make a key. Raises ConfigurationError for an invalid name."""
    check_name(name)
    public, secret = zmq.curve_keypair()
    return KeyPair(name, public, secret)


def check_name(name: str) -> None:
    """Raise ConfigurationError unless it can name a key: letters, digits, '.', '_', '-'; 64 at most."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot name a key: use letters, digits, '.', '_' and '-', {NAME_CHARS_MAX} at most, a "
            "letter or digit first"
        )


def write_key(key: KeyPair, folder: Path, *, file_name: str = "") -> tuple[Path, Path]:
    """Write ``NAME.key`` (mode 0600) and ``NAME.pub``; their paths. ``file_name``: NAME, if not the key's.

    Raises ConfigurationError if one of them exists or cannot be written: then neither is made. It never
    replaces a file.
    """
    file_name = file_name or key.name
    secret_path, public_path = folder / f"{file_name}.key", folder / f"{file_name}.pub"
    public = f"name: {key.name}\npublic: {key.public.decode()}\n"
    head = f"# The bstar key of {key.name}. Whoever has this file can connect as {key.name}.\n"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_new(secret_path, f"{head}{public}secret: {key.secret.decode()}\n", 0o600)
        try:
            _write_new(public_path, public, 0o644)
        except OSError:
            secret_path.unlink()
            raise
    except FileExistsError as error:
        raise ConfigurationError(
            f"{error.filename} exists: a new key needs another name or folder, or remove that file first"
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: cannot be written: {error.strerror}") from error
    return secret_path, public_path


def _write_new(path: Path, text: str, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
    except OSError as error:
        path.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error


def read_key(path: str | os.PathLike[str]) -> KeyPair:
    """The key of a ``.key`` file.

    Raises ConfigurationError if it is invalid, if its halves do not match, or if others may read it.
    """
    name, values = _read(path, is_secret=True)
    if "secret" not in values:
        raise ConfigurationError(
            f"{path}: holds a public key only; name the .key file, which has both halves"
        )
    public, secret = values["public"].encode(), values["secret"].encode()
    try:
        derived = zmq.curve_public(secret)
    except zmq.ZMQError:
        derived = b""
    if derived != public:
        raise ConfigurationError(f"{path}: its public and its secret half do not belong together")
    return KeyPair(name, public, secret)


def read_public_key(path: str | os.PathLike[str]) -> tuple[str, bytes]:
    """Name and public half, in Z85, of a ``.pub`` or a ``.key`` file. Raises ConfigurationError."""
    name, values = _read(path, is_secret=False)
    return name, values["public"].encode()


def _read(path: str | os.PathLike[str], *, is_secret: bool) -> tuple[str, dict[str, str]]:
    text, is_open = read_small(path, _FILE_BYTES_MAX)
    values: dict[str, str] = {}
    for number, line in enumerate(text.decode("ascii", "replace").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line)
        is_half = found is not None and (found[1] == "name" or is_public_key(found[2]))
        if found is None or not is_half or found[1] in values:
            raise ConfigurationError(
                f"{path}:{number}: is no line of a key file (name, public, secret; 40 characters of Z85): "
                "make keys with bstar keys new"
            )
        values[found[1]] = found[2]
    if len(text) > _FILE_BYTES_MAX or "public" not in values or "name" not in values:
        raise ConfigurationError(f"{path}: is no key file of bstar: make one with bstar keys new NAME")
    check_name(values["name"])
    if is_secret and "secret" in values and is_open:
        raise ConfigurationError(f"{path}: others may read this secret key: chmod 600 {path}")
    return values["name"], values
