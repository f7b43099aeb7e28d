"""Reasons for refusal: one table of the product, which the page for operators repeats in full."""

from pathlib import Path

from bstar_broker.core.refusals import REFUSALS
from bstar_pipeline import slo

PAGE = Path(__file__).parents[1] / "docs/operations.md"


def test_operators_read_every_reason_as_clients_hear_it() -> None:
    _, _, rest = PAGE.read_text().partition("\n## Refusals\n")
    section, _, _ = rest.partition("\n## ")
    told = [
        tuple(map(str.strip, line.split("|")[1:3])) for line in section.splitlines() if line.startswith("| `")
    ]
    heard = [
        (f"`{each.reason}`", f"{'BUSY' if each.code is None else each.code.name}: {each.text}")
        for each in REFUSALS
    ]
    assert sorted(told) == sorted(heard)


def test_objectives_count_every_reason_that_a_service_counts() -> None:
    assert set(slo.REFUSALS) == {each.reason for each in REFUSALS if each.is_of_service}
