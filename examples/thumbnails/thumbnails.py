"""A service that shrinks PPM images to PNG thumbnails, in pure Python.

    bstar run thumbnails:app --processes 2 --requests-max 1000

The body is the image, the header ``side`` the longest side of its thumbnail. Between two rows the handler
looks whether its caller still waits, and says how many rows are done.
"""

import re
import struct
import zlib
from collections.abc import Iterator

from bstar_client import App, Declined, Request

SIDE, SIDE_MAX = 128, 1_024
_NUMBER = re.compile(r"[1-9][0-9]{0,3}")
_HEADER = re.compile(rb"P6\s+([1-9]\d{0,5})\s+([1-9]\d{0,5})\s+255\s")

app = App()


# One image at a time in each process: two would share its core, and both be late.
@app.service("thumbnail", threads=1, credit=1)
def thumbnail(image: bytes, request: Request) -> bytes:
    """The thumbnail as a PNG; nothing if nobody waits for it any more."""
    side = _side(request.headers.get("side", str(SIDE)))
    width, height, pixels = _read(image)
    box = -(-max(width, height) // side)
    rows: list[bytes] = []
    for row in shrunk_rows(width, height, pixels, box):
        if request.is_cancelled:
            return b""
        rows.append(row)
        request.progress(len(rows), height // min(box, height), "rows")
    return _png(rows)


def shrunk_rows(width: int, height: int, pixels: bytes, box: int) -> Iterator[bytes]:
    """Each pixel is the mean of a square of ``box`` pixels; what is left at the edges is cut off."""
    across, down = min(box, width), min(box, height)
    for top in range(0, height - down + 1, down):
        lines = [pixels[y * width * 3 : (y + 1) * width * 3] for y in range(top, top + down)]
        row = bytearray()
        for left in range(0, (width - across + 1) * 3, across * 3):
            for colour in range(left, left + 3):
                total = sum(sum(line[colour : left + across * 3 : 3]) for line in lines)
                row.append(total // (across * down))
        yield bytes(row)


def _side(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > SIDE_MAX:
        raise Declined("bad-side", f"the header side is {text!r}, not a number from 1 to {SIDE_MAX}")
    return int(text)


def _read(image: bytes) -> tuple[int, int, bytes]:
    """Width, height, and three bytes for each pixel."""
    header = _HEADER.match(image)
    if header is None:
        raise Declined("not-ppm", "the body is not a binary PPM (P6) with a maximum of 255")
    width, height, pixels = int(header[1]), int(header[2]), image[header.end() :]
    if len(pixels) != width * height * 3:
        raise Declined("bad-size", f"{width} x {height} pixels need {width * height * 3} bytes of colours")
    return width, height, pixels


def _png(rows: list[bytes]) -> bytes:
    size = struct.pack(">II5B", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    colours = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = _chunk(b"IHDR", size) + _chunk(b"IDAT", colours) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
