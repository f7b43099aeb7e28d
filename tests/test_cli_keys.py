"""``bstar keys``: files and the list of principals, in a folder."""

from __future__ import annotations

import resource
import stat
from pathlib import Path

import pytest

from bstar.errors import ConfigurationError
from bstar.security import read_key, read_public_key
from bstar.settings.principals import load_principals
from bstar_cli import exits
from bstar_cli.main import main


def keys(folder: Path, *arguments: str) -> int:
    return main(["keys", *arguments, "--out", str(folder)])


def roles(folder: Path) -> dict[str, tuple[str, ...]]:
    return {entry.name: entry.roles for entry in load_principals(folder / "principals.yaml").all}


def test_new_makes_keys_and_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys(tmp_path, "new", "primary", "backup", "--peer") == exits.OK
    told = capsys.readouterr().out
    for name in ("primary", "backup"):
        assert f"# in the configuration of {name}:\nsecurity:\n  key: {tmp_path / name}.key\n" in told
    assert keys(tmp_path, "new", "shop", "--calls", "price,stock.*") == exits.OK
    assert roles(tmp_path) == {"primary": ("peer",), "backup": ("peer",), "shop": ("calls",)}
    assert stat.S_IMODE((tmp_path / "shop.key").stat().st_mode) == 0o600
    secret = read_key(tmp_path / "shop.key").secret.decode()
    assert main(["keys", "show", str(tmp_path / "principals.yaml"), str(tmp_path / "shop.key")]) == exits.OK
    said = "".join(capsys.readouterr())
    assert "shop: calls price, stock.*" in said
    assert secret not in said


@pytest.mark.parametrize("name", ["on", "null", "1e3", "7", "no"])
def test_a_name_that_yaml_reads_as_something_else_is_written_in_quotes(tmp_path: Path, name: str) -> None:
    assert keys(tmp_path, "new", name, "--calls", "price") == exits.OK
    assert roles(tmp_path) == {name: ("calls",)}
    assert keys(tmp_path, "rotate", name) == exits.OK
    assert keys(tmp_path, "retire", name) == exits.OK
    assert roles(tmp_path) == {name: ("calls",)}


def test_a_token_is_printed_once_and_its_digest_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keys(tmp_path, "token", "web", "--calls", "price,stock.*") == exits.OK
    token = capsys.readouterr().out.strip()
    listed = load_principals(tmp_path / "principals.yaml")
    found = listed.of_token(token)
    assert found is not None
    assert (found.name, found.keys, found.calls.texts) == ("web", (), ("price", "stock.*"))
    assert listed.of_token(token[:-1]) is None
    assert token not in (tmp_path / "principals.yaml").read_text()
    assert main(["keys", "show", str(tmp_path / "principals.yaml")]) == exits.OK
    assert f"  token {found.tokens[0]}" in capsys.readouterr().out
    assert keys(tmp_path, "token", "web", "--calls", "price") == exits.USAGE
    assert keys(tmp_path, "token", "other", "--calls", "a*b") == exits.USAGE


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{calls: [price]}", "has no keys"),
        ("{tokens: ['abc'], calls: [price]}", "tokens: holds what is no digest"),
        (f"{{tokens: ['{'a' * 64}'], offers: [price]}}", "has tokens, which are for calls"),
        ("{tokens: 7, calls: [price]}", "tokens is a list"),
    ],
)
def test_a_wrong_entry_for_tokens_says_what_is_wrong(tmp_path: Path, entry: str, said: str) -> None:
    path = tmp_path / "principals.yaml"
    path.write_text(f"principals:\n  web: {entry}\n")
    with pytest.raises(ConfigurationError, match=said):
        load_principals(path)


def test_new_replaces_nothing(tmp_path: Path) -> None:
    assert keys(tmp_path, "new", "shop", "--calls", "price") == exits.OK
    before = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert keys(tmp_path, "new", "shop", "--calls", "stock") == exits.USAGE
    assert keys(tmp_path, "new", "shop") == exits.USAGE
    assert keys(tmp_path, "new", "a b", "--peer") == exits.USAGE
    assert keys(tmp_path, "new", "c", "--calls", "a*b") == exits.USAGE
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == before


@pytest.mark.parametrize("there", ["backup.key", "backup.pub"])
def test_new_makes_nothing_if_one_of_the_files_is_there(tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("theirs")
    assert keys(tmp_path, "new", "primary", "backup", "--peer") == exits.USAGE
    assert [path.name for path in tmp_path.iterdir()] == [there]


def test_a_full_disk_leaves_no_half_of_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        assert keys(tmp_path, "new", "shop") == exits.USAGE
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert f"{tmp_path / 'shop.key'}: cannot be written: File too large" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["new", "token"])
def test_any_name_of_a_service_is_listed_as_it_is(tmp_path: Path, verb: str) -> None:
    assert keys(tmp_path, verb, "shop", "--calls", "o'clock, a: b,{x}") == exits.OK
    [entry] = load_principals(tmp_path / "principals.yaml").all
    assert entry.calls.texts == ("o'clock", "a: b", "{x}")
    assert keys(tmp_path, verb, "till", "--calls", "two\nlines") == exits.USAGE
    assert keys(tmp_path, verb, "till", "--calls", "\udcff") == exits.USAGE


@pytest.mark.parametrize("arguments", [("new", "shop", "--peer"), ("token", "web", "--calls", "x")])
@pytest.mark.parametrize("folder", ["/dev/null/keys", "x" * 300])
def test_a_folder_that_cannot_be_is_wrong_usage(arguments: tuple[str, ...], folder: str) -> None:
    assert keys(Path(folder), *arguments) == exits.USAGE


def test_new_makes_what_is_missing_and_may_be_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = ("new", "shop", "--calls", "price", "--if-missing")
    assert keys(tmp_path, *once) == exits.OK
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert keys(tmp_path, *once) == exits.OK
    assert "shop.key is there" in capsys.readouterr().out
    assert keys(tmp_path, "new", "shop", "till", "--calls", "price", "--if-missing") == exits.OK
    assert roles(tmp_path) == {"shop": ("calls",), "till": ("calls",)}
    assert (tmp_path / "shop.key").read_bytes() == before["shop.key"]


def test_new_does_not_pass_over_roles_that_the_list_has_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new line of roles for a key that is there must not be ignored in silence."""
    assert keys(tmp_path, "new", "shop", "--calls", "price", "--if-missing") == exits.OK
    listed = tmp_path / "principals.yaml"
    capsys.readouterr()
    wanted = ("new", "till", "shop", "--calls", "stock, price", "--if-missing")
    assert keys(tmp_path, *wanted) == exits.USAGE
    said = capsys.readouterr().err
    assert f"{listed} lists shop with calls price, and you say calls price, stock" in said
    assert "edit the line of shop" in said
    assert not (tmp_path / "till.key").exists(), "nothing is made"
    assert keys(tmp_path, "new", "shop", "--calls", "price", "--operator", "--if-missing") == exits.USAGE
    listed.write_text(listed.read_text().replace("['price']", "['price', stock], connections: 7"))
    assert keys(tmp_path, *wanted) == exits.OK
    assert roles(tmp_path) == {"shop": ("calls",), "till": ("calls",)}


@pytest.mark.parametrize("lost", ["shop.key", "principals.yaml"])
def test_new_does_not_take_half_a_key_for_a_whole_one(tmp_path: Path, lost: str) -> None:
    """A key that nobody lists would be refused by every node, and an entry without a key is of no use."""
    once = ("new", "shop", "--calls", "price", "--if-missing")
    assert keys(tmp_path, *once) == exits.OK
    (tmp_path / lost).unlink()
    assert keys(tmp_path, *once) == exits.USAGE
    assert not (tmp_path / lost).exists()


def test_new_says_that_a_key_without_a_role_is_unlisted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keys(tmp_path, "new", "shop") == exits.OK
    assert "not listed" in capsys.readouterr().err
    assert not (tmp_path / "principals.yaml").exists()


def test_a_rotation_lists_both_keys_and_then_the_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys(tmp_path, "new", "shop", "--calls", "price")
    keys(tmp_path, "new", "ops", "--operator")
    old = read_key(tmp_path / "shop.key")
    assert keys(tmp_path, "rotate", "shop") == exits.OK
    new = read_key(tmp_path / "shop.next.key")
    listed = load_principals(tmp_path / "principals.yaml")
    assert listed.all[0].keys == (old.public.decode(), new.public.decode())
    assert keys(tmp_path, "rotate", "shop") == exits.USAGE, "two are enough"
    assert "must use the new key" in capsys.readouterr().err
    capsys.readouterr()
    assert keys(tmp_path, "retire", "shop") == exits.OK
    assert (
        "names shop.next.key or shop.next.pub there must name shop.key or shop.pub" in capsys.readouterr().out
    )
    assert read_key(tmp_path / "shop.key") == new
    assert read_public_key(tmp_path / "shop.pub") == ("shop", new.public)
    assert not list(tmp_path.glob("*.next.*"))
    assert load_principals(tmp_path / "principals.yaml").all[0].keys == (new.public.decode(),)
    assert roles(tmp_path) == {"shop": ("calls",), "ops": ("operator",)}
    assert keys(tmp_path, "retire", "shop") == exits.USAGE, "it has one key"
    assert keys(tmp_path, "rotate", "nobody") == exits.USAGE


@pytest.mark.parametrize("survivors", [2, 1])
def test_a_retire_that_was_killed_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survivors: int
) -> None:
    """The list has the new key alone, whose files have their old names no more, or not yet."""
    keys(tmp_path, "new", "shop", "--calls", "price")
    keys(tmp_path, "rotate", "shop")
    new = read_key(tmp_path / "shop.next.key")
    rename = Path.replace

    def die(self: Path, target: Path) -> Path:
        if ".next." in self.name and len(list(tmp_path.glob("*.next.*"))) == survivors:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", die)
        keys(tmp_path, "retire", "shop")
    assert len(list(tmp_path.glob("*.next.*"))) == survivors
    assert keys(tmp_path, "retire", "shop") == exits.OK
    assert read_key(tmp_path / "shop.key") == new
    assert read_public_key(tmp_path / "shop.pub") == ("shop", new.public)
    assert not list(tmp_path.glob("*.next.*"))


def test_retire_changes_nothing_without_the_new_files(tmp_path: Path) -> None:
    keys(tmp_path, "new", "shop", "--calls", "price")
    keys(tmp_path, "rotate", "shop")
    (tmp_path / "shop.next.pub").unlink()
    assert keys(tmp_path, "retire", "shop") == exits.USAGE
    assert len(load_principals(tmp_path / "principals.yaml").all[0].keys) == 2
