"""Reasons for refusal: one table of the product, which the page for operators repeats in full."""

from pathlib import Path

from bstar_broker.core.quotas import QUOTA_REASONS
from bstar_broker.core.refusals import REFUSALS
from bstar_broker.store.core.desk import DESK_REASONS
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
    # The texts of these have the principal and its bound in them, or say what is wrong with the store.
    of_entries = {f"`{reason}`" for reason in QUOTA_REASONS | DESK_REASONS}
    assert sorted(row for row in told if row[0] not in of_entries) == sorted(heard)
    assert sorted(row[0] for row in told if row[0] in of_entries) == sorted(of_entries)


def test_objectives_count_every_reason_that_a_service_counts() -> None:
    assert set(slo.REFUSALS) == {each.reason for each in REFUSALS if each.is_of_service}
