"""Thumbnails: what they look like, and that a caller who gives up frees the worker."""

import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import thumbnails
from bstar_client import CallTimeoutError, DeclinedError, Progress
from bstar_testing import fake, pair
from shrink import shrink, sizes
from thumbnails import app

RED, BLUE = b"\xff\0\0", b"\0\0\xff"


def ppm(width: int, height: int, pixels: bytes) -> bytes:
    return b"P6\n%d %d\n255\n" % (width, height) + pixels


HALVES = ppm(4, 2, (RED * 2 + BLUE * 2) * 2)


def pixels_of(png: bytes) -> tuple[int, int, bytes]:
    """Width, height and colours of what the service makes: one IDAT, no filters."""
    width, height = struct.unpack(">II", png[16:24])
    length = int.from_bytes(png[33:37], "big")
    lines = zlib.decompress(png[41 : 41 + length])
    step = 1 + width * 3
    return width, height, b"".join(lines[y * step + 1 : (y + 1) * step] for y in range(height))


def test_each_pixel_of_a_thumbnail_is_the_mean_of_a_square() -> None:
    with fake(app) as client:
        png = client.request("thumbnail", HALVES, headers={"side": "2"}).body
        assert pixels_of(png) == (2, 1, RED + BLUE)
        png = client.request("thumbnail", HALVES, headers={"side": "1"}).body
        assert pixels_of(png) == (1, 1, b"\x7f\0\x7f")


def test_a_small_image_keeps_its_size() -> None:
    with fake(app) as client:
        assert pixels_of(client.request("thumbnail", HALVES).body) == (4, 2, (RED * 2 + BLUE * 2) * 2)


@pytest.mark.parametrize(
    ("image", "side", "code"),
    [
        (b"GIF89a", "128", "not-ppm"),
        (ppm(4, 2, RED), "128", "bad-size"),
        (HALVES, "0", "bad-side"),
        (HALVES, "9999", "bad-side"),
        (HALVES, "wide", "bad-side"),
    ],
)
def test_what_is_no_image_is_declined(image: bytes, side: str, code: str) -> None:
    with fake(app) as client, pytest.raises(DeclinedError) as caught:
        client.request("thumbnail", image, headers={"side": side})
    assert caught.value.code == code


def test_a_folder_is_shrunk_and_each_bad_file_named(tmp_path: Path) -> None:
    (tmp_path / "good.ppm").write_bytes(HALVES)
    (tmp_path / "bad.ppm").write_bytes(b"GIF89a")
    with fake(app) as client:
        bad, good = shrink(client, sorted(tmp_path.glob("*.ppm")), side=2)
    assert "bad.ppm: not-ppm" in bad
    assert good.endswith(f"good.png: {(tmp_path / 'good.png').stat().st_size} bytes")
    assert pixels_of((tmp_path / "good.png").read_bytes()) == (2, 1, RED + BLUE)


def test_several_sizes_are_made_at_once() -> None:
    with fake(app) as client:
        made = sizes(client, HALVES, [1, 2, 4], timeout=10)
        assert [pixels_of(png)[:2] for png in made] == [(1, 1), (2, 1), (4, 2)]
        with pytest.raises(DeclinedError):
            sizes(client, HALVES, [1, 0, 4], timeout=10)


def test_a_caller_sees_how_many_rows_are_done() -> None:
    seen: dict[int, Progress] = {}
    with fake(app) as client:
        sizes(client, HALVES, [1, 4], timeout=10, on_progress=seen.__setitem__)
    assert seen == {1: Progress(1, 1, "rows"), 4: Progress(2, 2, "rows")}


def test_a_handler_stops_between_rows_once_its_caller_has_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    studio = fake(app)
    made: list[int] = []

    def slow_rows(*_: object) -> Iterator[bytes]:
        for number in range(1_000):
            studio.pass_time(1)
            made.append(number)
            yield RED

    with studio as client:
        with monkeypatch.context() as patched:
            patched.setattr(thumbnails, "shrunk_rows", slow_rows)
            with pytest.raises(CallTimeoutError) as caught:
                client.request("thumbnail", HALVES, timeout=5)
        assert caught.value.may_have_executed
        assert pixels_of(client.request("thumbnail", HALVES, timeout=5).body)[:2] == (4, 2)
    assert len(made) < 20


@pytest.mark.loopback
def test_no_image_is_lost_while_processes_are_recycled() -> None:
    with pair(workers=0) as p:
        argv = [sys.executable, "-m", "bstar_cli", "run", "thumbnails:app", "--requests-max", "5"]
        studio = p.start_process("studio", argv)
        client = p.client(timeout=60)
        assert len(list(client.map("thumbnail", [HALVES] * 12))) == 12
        studio.wait_for_log("replacing a process")
        assert len(list(client.map("thumbnail", [HALVES] * 12))) == 12
