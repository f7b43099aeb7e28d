"""Whether a process listens at an endpoint. A refused connection proves that none does."""

import socket
from typing import Final, Literal

from bstar.base.endpoints import Endpoint, parse_endpoint

# A peer on the same network answers or refuses within milliseconds.
_PROBE_S: Final = 2.0


def probe(endpoint: str) -> tuple[Literal["refuses", "listens", "unreachable"], str]:
    """Connect to each address of ``endpoint``. The text says why it cannot be reached."""
    try:
        targets = _targets(parse_endpoint(endpoint, bind=False))
    except OSError as error:
        return "unreachable", error.strerror or str(error)
    for family, address in targets:
        try:
            with socket.socket(family) as connection:
                connection.settimeout(_PROBE_S)
                connection.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            continue
        except OSError as error:  # a family that this machine lacks is one, too
            return "unreachable", error.strerror or str(error)
        return "listens", ""
    return "refuses", ""


def _targets(endpoint: Endpoint) -> "list[tuple[int, tuple[str, int] | str]]":
    if endpoint.transport == "ipc":
        return [(socket.AF_UNIX, endpoint.unix_path)]
    found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]  # TCP has hosts and ports
