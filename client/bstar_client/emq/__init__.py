"""EventMQ (eMQP/1.0) without its router: a job manager, a client and publisher, an admin's questions.

    manager = EmqJobManager(["tcp://127.0.0.1:47290"], queues=[(10, "default")], allow=["shop.jobs"])
    client = EmqClient(["tcp://127.0.0.1:47291"])

They work with the published program's router and with a node of bstar that has one. docs/patterns.md has
the reader's introduction; ``bstar.wire.emq`` has the frames.
"""

from typing import TYPE_CHECKING

from bstar.base.on_demand import on_demand

if TYPE_CHECKING:
    from bstar.wire.emq_jobs import Headers, Job
    from bstar_client.emq.admin import ask_router
    from bstar_client.emq.client import EmqClient
    from bstar_client.emq.manager import EmqJobManager

__all__ = ["EmqClient", "EmqJobManager", "Headers", "Job", "ask_router"]

__getattr__ = on_demand(
    __name__,
    {
        "bstar.wire.emq_jobs": ["Headers", "Job"],
        "bstar_client.emq.admin": ["ask_router"],
        "bstar_client.emq.client": ["EmqClient"],
        "bstar_client.emq.manager": ["EmqJobManager"],
    },
)
