"""Frames of a body in JSON: their text, or their bytes in base64."""

import base64
import binascii

from bstar.errors import LocalProtocolError


def json_frame(frame: bytes) -> str | dict[str, str]:
    """A frame for JSON: its text, or ``{"base64": …}`` if it is no UTF-8."""
    try:
        return frame.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(frame).decode()}


def frame_of(value: object) -> bytes:
    """The frame that ``json_frame`` wrote. LocalProtocolError if the value is none."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"a body's text cannot be written as UTF-8: {error}") from error
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError) as error:
            raise LocalProtocolError(f"a body's base64 cannot be read: {error}") from error
    raise LocalProtocolError('a body in JSON is a text, or {"base64": "…"}')
