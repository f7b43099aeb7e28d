"""Who may read a node's pages: the file of tokens, and the files that are read again when they change."""

from __future__ import annotations

import logging
import os
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.errors import ConfigurationError
from bstar.net.http_access import SECRETS_MAX, Credentials, HttpAccess, read_credentials
from bstar.security.files import WatchedFiles
from bstar.settings import Http

TOKEN = "a-token-of-more-than-16"
PASSWORD = "a pass:word, with ü"
FILE = f"# prometheus\n{TOKEN}\n\nada:{PASSWORD}\r\n"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    write(path, FILE)
    return path


def write(path: Path, text: str) -> None:
    """In place, so the file stays the same one for who watches it; its mode is private."""
    path.touch(0o600)
    path.write_text(text, encoding="utf-8")


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "header",
    [
        f"Bearer {TOKEN}",
        f"bearer {TOKEN}",
        f"  BEARER   {TOKEN} ",
        basic("ada", PASSWORD),
        basic("ada", PASSWORD).replace("Basic", "basic"),
    ],
)
def test_what_the_file_lists_is_good(tokens: Path, header: str) -> None:
    assert read_credentials(str(tokens)).match(header)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN} {TOKEN}",
        f"Token {TOKEN}",
        f"Basic {TOKEN}",
        f"Bearer ada:{PASSWORD}",
        f"Basic ada:{PASSWORD}",
        "Basic ====",
        "Basic \xff",
        "\xff \xff",
        basic("ada", ""),
        basic("", PASSWORD),
        basic("ADA", PASSWORD),
        basic("ada", PASSWORD + "x"),
        basic("ada", TOKEN),
        basic("", TOKEN),
        f"Bearer {b64encode(TOKEN.encode()).decode()}",
        "Bearer # prometheus",
    ],
)
def test_nothing_else_is_good(tokens: Path, header: str) -> None:
    assert not read_credentials(str(tokens)).match(header)


@given(st.text(st.characters(max_codepoint=255)))
def test_no_header_makes_it_raise(header: str) -> None:
    assert not Credentials([("Bearer", TOKEN.encode())]).match(header)


def test_a_secret_is_not_kept(tokens: Path) -> None:
    held = repr(vars(read_credentials(str(tokens))))
    assert TOKEN not in held
    assert PASSWORD not in held


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds 0 tokens"),
        ("# none\n\n", "holds 0 tokens"),
        ("\n" + TOKEN[:15], ":2: a token or password has 16 characters"),
        (f"ada:{PASSWORD[:15]}", ":1: a token or password has 16 characters"),
        (f"Bearer {TOKEN}", ":1: is neither a token"),
        (f":{PASSWORD}", ":1: is neither a token"),
        (f"ada:{PASSWORD}\tx", ":1: is neither a token"),
        (f"{TOKEN}ü", ":1: is neither a token"),
        ("\n".join(f"{TOKEN}{number}" for number in range(SECRETS_MAX + 1)), f"not 1 to {SECRETS_MAX}"),
        (TOKEN * 4_000, "has more than 65536 octets"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_without_its_secrets(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "tokens"
    write(path, text)
    with pytest.raises(ConfigurationError) as caught:
        read_credentials(str(path))
    assert str(caught.value).startswith(f"http.tokens: {path}")
    assert said in str(caught.value)
    assert TOKEN[:15] not in str(caught.value)
    assert PASSWORD[:15] not in str(caught.value)


def test_a_file_in_another_encoding_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_bytes(b"ada:" + b"\xff" * 20)
    with pytest.raises(ConfigurationError, match="no text in UTF-8"):
        read_credentials(str(path))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused(tokens: Path, mode: int) -> None:
    tokens.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"others may read this file of tokens: chmod 600 {tokens}"):
        read_credentials(str(tokens))


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"http\.tokens: .*nowhere: cannot be read: No such file"):
        HttpAccess(Http(tokens=str(tmp_path / "nowhere")))


def test_without_a_file_nobody_is_asked() -> None:
    assert HttpAccess(Http()).judge([]) is None
    assert HttpAccess(Http()).judge(["Bearer what"]) is None


def test_a_request_shows_one_secret_once(tokens: Path) -> None:
    access = HttpAccess(Http(tokens=str(tokens)))
    good = f"Bearer {TOKEN}"
    assert access.judge([good]) is None
    assert access.judge([]) == "no-credentials"
    assert access.judge([""]) == "wrong-credentials"
    assert access.judge([good, good]) == "wrong-credentials"
    assert access.judge([good, "Bearer other"]) == "wrong-credentials"


@pytest.mark.parametrize(
    ("text", "challenges"),
    [
        (TOKEN, ('Bearer realm="bstar"',)),
        (f"ada:{PASSWORD}", ('Basic realm="bstar", charset="UTF-8"',)),
        (FILE, ('Bearer realm="bstar"', 'Basic realm="bstar", charset="UTF-8"')),
    ],
)
def test_a_challenge_names_what_can_be_shown(tmp_path: Path, text: str, challenges: tuple[str, ...]) -> None:
    path = tmp_path / "tokens"
    write(path, text)
    assert HttpAccess(Http(tokens=str(path))).challenges == challenges


def test_a_file_that_changes_is_read_again_and_one_that_breaks_changes_nothing(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    access = HttpAccess(Http(tokens=str(tokens)))
    second = "another-token-of-16"

    write(tokens, f"{second}\n")
    access.refresh()
    assert access.judge([f"Bearer {TOKEN}"]) == "wrong-credentials"
    assert access.judge([f"Bearer {second}"]) is None
    assert "the HTTP endpoint's file of tokens was read again" in caplog.text

    write(tokens, "short")
    access.refresh()
    assert access.judge([f"Bearer {second}"]) is None
    assert ":1: a token or password has 16 characters" in access.error
    assert access.error
    assert "what it said before holds: http.tokens: " in caplog.text

    write(tokens, FILE)
    access.refresh()
    assert access.judge([f"Bearer {TOKEN}"]) is None
    assert (access.error, access.credentials) == ("", 2)
    assert not [secret for secret in (TOKEN, PASSWORD, second) if secret in caplog.text]


def test_a_mode_that_is_mended_is_a_change(tokens: Path) -> None:
    access = HttpAccess(Http(tokens=str(tokens)))
    tokens.chmod(0o644)
    access.refresh()
    assert "chmod 600" in access.error
    tokens.chmod(0o600)
    access.refresh()
    assert access.error == ""


def test_a_file_that_is_replaced_is_a_change_although_its_times_are_old(tokens: Path) -> None:
    """As cp -p and tar leave it, with as many octets as before."""
    access = HttpAccess(Http(tokens=str(tokens)))
    other = tokens.with_name("other")
    write(other, FILE.replace("a-token", "A-TOKEN"))
    found = tokens.stat()
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(tokens)
    access.refresh()
    assert access.judge([f"Bearer {TOKEN}"]) == "wrong-credentials"


def test_a_file_that_is_gone_keeps_what_it_said(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    access = HttpAccess(Http(tokens=str(tokens)))
    tokens.unlink()
    for _ in range(3):
        access.refresh()
    assert access.judge([f"Bearer {TOKEN}"]) is None
    assert caplog.text.count("cannot be used") == 1, "one change is told once"


def test_files_that_belong_together_are_read_when_one_of_them_changes(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_text("1")
    files = WatchedFiles("two files", paths, lambda: [path.read_text() for path in paths])
    assert not files.refresh()
    paths[1].write_text("22")
    assert files.refresh()
    assert files.value == ["1", "22"]
    assert not files.refresh()


def test_refusals_are_counted_and_the_first_of_each_reason_is_logged(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access = HttpAccess(Http(tokens=str(tokens)))
    for _ in range(3):
        access.refuse("wrong-credentials", "192.0.2.7")
        access.refuse("tls-failed", "192.0.2.7", "UNKNOWN_CA")
    assert access.refusals == {"wrong-credentials": 3, "tls-failed": 3}
    assert caplog.text.count("refused an HTTP request from 192.0.2.7: wrong-credentials;") == 1
    assert caplog.text.count("refused an HTTP request from 192.0.2.7: tls-failed (UNKNOWN_CA);") == 1
    write(tokens, FILE + "\n")
    access.refresh()
    access.refuse("wrong-credentials", "192.0.2.7")
    assert caplog.text.count("wrong-credentials;") == 2
