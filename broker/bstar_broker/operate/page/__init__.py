"""The status page: one document that asks for nothing but the node's stream of events, and what these hold.

Its style and its script are in the document, and its content security policy names them by their hashes. So
the browser runs no other script, even if a text of the wire held one; the script puts texts in as text only.
"""

import time
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Final

import msgspec

from bstar_broker.core.records import LATENCY_BOUNDS_S
from bstar_broker.core.snapshot import NodeState, ServiceState

# A phone draws as many without a pause, and an event of them has some 60 kB.
SERVICES_SHOWN_MAX = 200

FINDINGS_SHOWN_MAX = 12


class View(msgspec.Struct, frozen=True):
    """An event: the node's state with the services that matter most. ``at_ms``: Unix milliseconds."""

    at_ms: int
    state: NodeState
    services_hidden: int
    latency_bounds_s: tuple[float, ...] = tuple(LATENCY_BOUNDS_S)


def _resource(name: str) -> str:
    return files("bstar_broker.operate.page").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


_STYLE, _SCRIPT = _resource("page.css"), _resource("page.js")

DOCUMENT: Final = _resource("page.html").replace("/*css*/", _STYLE).replace("/*js*/", _SCRIPT).encode()
HEADERS: Final = (
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
            f"script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        ),
    ),
    ("Referrer-Policy", "no-referrer"),
)


def view(state: NodeState, at_s: float | None = None) -> View:
    """What the page shows of ``state`` now."""
    services = state.broker.services
    shown = sorted(services, key=_weight)[:SERVICES_SHOWN_MAX]
    broker = msgspec.structs.replace(state.broker, services=shown, past=[])
    at_s = time.time() if at_s is None else at_s
    return View(
        round(at_s * 1_000),
        msgspec.structs.replace(state, broker=broker, findings=(state.findings or [])[:FINDINGS_SHOWN_MAX]),
        services_hidden=len(services) - len(shown),
    )


def _weight(service: ServiceState) -> tuple[bool, int, int, str]:
    """Trouble first, then work, then the name."""
    is_fine = not (service.stuck or (service.queued and not service.workers))
    return is_fine, -(service.queued + service.in_flight), -service.accepted, service.service


def event(state: NodeState) -> bytes:
    """A state as a server-sent event (the "event stream" of HTML)."""
    return b"data: " + msgspec.json.encode(view(state)) + b"\n\n"


def trouble(why: str) -> bytes:
    """An event that says why there is no state."""
    return b"event: trouble\ndata: " + msgspec.json.encode({"why": why}) + b"\n\n"
