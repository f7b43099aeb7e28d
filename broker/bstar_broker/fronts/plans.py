"""The fronts that a node's configuration switches on."""

from bstar.settings import Settings
from bstar_broker.fronts.emq.plan import plans as emq_plans
from bstar_broker.fronts.plan import Plan
from bstar_broker.fronts.ppp.plan import plans as ppp_plans
from bstar_broker.fronts.pzq.plan import plans as pzq_plans


def plans_of(settings: Settings) -> list[Plan]:
    """One for each front that is on. ConfigurationError if the rest of the configuration does not fit."""
    return [*ppp_plans(settings), *pzq_plans(settings), *emq_plans(settings)]
