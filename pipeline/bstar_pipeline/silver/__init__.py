"""Silver: processes, their states and requests, joined from the records of nodes, clients and workers.

Each table is a function of bronze records, batch DataFrames in and out, without an action.
"""

from bstar_pipeline.silver.clocks import corrected, links, peer_links
from bstar_pipeline.silver.durables import durables
from bstar_pipeline.silver.requests import repeated, requests
from bstar_pipeline.silver.runs import earlier, runs
from bstar_pipeline.silver.states import both_serving, histories, states

__all__ = [
    "both_serving", "corrected", "durables", "earlier", "histories", "links", "peer_links", "repeated",
    "requests", "runs", "states",
]  # fmt: skip
