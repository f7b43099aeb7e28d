"""Silver: processes, their states and requests, joined from the records of nodes, clients and workers.

``facts`` brings what the driver makes runs and states of; the other tables are queries of bronze records.
"""

from bstar_pipeline.silver.durables import durables
from bstar_pipeline.silver.requests import requests
from bstar_pipeline.silver.runs import clock_of, corrected, fact_rows, facts, links, peer_links, runs
from bstar_pipeline.silver.states import histories, histories_of, states

__all__ = [
    "clock_of", "corrected", "durables", "fact_rows", "facts", "histories", "histories_of",
    "links", "peer_links", "requests", "runs", "states",
]  # fmt: skip
