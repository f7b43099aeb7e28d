"""What a service promises: the objectives that the pipeline measures against, from a small file.

    default: {availability: 0.999, latency_us: 100000, latency_share: 0.99}
    services:
      resize: {latency_us: 2000000}
      search: {availability: 0.9999, errors: [expired, poison, lost, queue-full]}
    period_days: 30

A service takes from ``default`` what it does not say itself. The *error budget* is what the objective leaves
over: of 0.999, one request in a thousand over the period. An alert is due when a window uses up the stated
part of the whole budget, and a shorter window shows that it goes on (Site Reliability Workbook, chapter 5,
"Alerting on SLOs").
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from bstar.errors import ConfigurationError
from bstar.settings.document import Problems, read_document
from bstar.wire.refusals import OF_SERVICE, SERVICES_FULL

Share = Annotated[float, msgspec.Meta(gt=0, lt=1)]

ERRORS = ("failed", "expired", "poison", "lost", *OF_SERVICE)
"""Outcomes of requests, and reasons of refusal, that use up the budget if the objective says no other."""

# A file may name it; no service counts it.
_NAMED = (*ERRORS, SERVICES_FULL.reason)


class Objective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The promise of one service.

    ``availability``: the share of requests that must not end in one of ``errors``. Of those that a worker
    finished, ``latency_share`` must take no longer than ``latency_us`` from acceptance to the end.
    """

    availability: Share = 0.999
    latency_us: Annotated[int, msgspec.Meta(gt=0)] = 100_000
    latency_share: Share = 0.99
    errors: tuple[str, ...] = ERRORS

    def __post_init__(self) -> None:
        """Check what a type cannot say."""
        for error in self.errors:
            if error not in _NAMED:
                raise ValueError(f"errors: there is no outcome {error}; there are {', '.join(_NAMED)}")


class Objectives(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The promises of all services; budgets are for ``period_days``.

    ``fast_share`` of a budget gone within an hour, or ``slow_share`` of it within six, is an alert if
    ``alert_requests`` or more ended within that time: of a few requests one failure is a large share.
    """

    default: Objective = Objective()
    services: dict[str, Objective] = {}
    period_days: Annotated[int, msgspec.Meta(gt=0)] = 30
    fast_share: Share = 0.02
    slow_share: Share = 0.05
    alert_requests: Annotated[int, msgspec.Meta(ge=0)] = 100

    @property
    def fast_burn(self) -> float:
        """The burn rate that uses up ``fast_share`` in an hour: 14.4 for 2 % of 30 days."""
        return self.fast_share * self.period_days * 24

    @property
    def slow_burn(self) -> float:
        """The burn rate that uses up ``slow_share`` in six hours: 6 for 5 % of 30 days."""
        return self.slow_share * self.period_days * 24 / 6


def load(path: Path) -> Objectives:
    """Read a YAML or JSON file. Raises ConfigurationError with the place of what is wrong in it."""
    problems = Problems()
    document, _ = read_document(path, problems)
    problems.raise_all()
    try:
        return msgspec.convert(_with_defaults(document), Objectives)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _with_defaults(document: Any) -> Any:
    """Lay each service's own words over those of the default."""
    if not isinstance(document, dict) or not isinstance(document.get("services"), dict):
        return document
    default = document.get("default", {})
    services = {
        name: {**default, **own} if isinstance(default, dict) and isinstance(own, dict) else own
        for name, own in document["services"].items()
    }
    return {**document, "services": services}
