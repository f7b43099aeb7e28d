"""The Majordomo Management Interface (8/MMI): services whose names begin with ``mmi.`` belong to the broker.

    mmi.service   body: a service's name   answer: [200] if a live worker offers it, else [404]
    mmi.services  body: anything           answer: [200] [JSON array of {"service", "workers", "queued"}]
    mmi.workers   body: a service's name   answer: [200] [JSON array of {"worker", "service", …}], or [404];
                  (empty: all of them)
    mmi.descriptions
                  body: a service's name   answer: [200] [JSON array of {"workers", "version", …}], or [404]
                  (empty: all of them)             [200] [JSON array of {"service", "workers", "versions", …}]
    mmi.names     body: a service's name   answer: [200] [JSON array of the names of its workers], or [404]
    mmi.state     body: anything           answer: [200] [JSON object: the node, its peer, services, counters]
    mmi.order     body: an operator's order  answer: [200] [JSON object: what came of it]; native clients only
    any other     answer: [501]

The first is the standard's; the others are ours. The broker reads the last body frame, and its answer has
no more frames than the table says (the published brokers disagree on both points).
"""

import enum

PREFIX = b"mmi."

OK = b"200"
NOT_FOUND = b"404"
NOT_IMPLEMENTED = b"501"

ORDER = b"mmi.order"
"""An order to the node (BSN-B-33). It is no question, so ``Service`` has no such name."""


class Service(enum.Enum):
    """The management services that this broker answers."""

    SERVICE = b"mmi.service"
    SERVICES = b"mmi.services"
    WORKERS = b"mmi.workers"
    DESCRIPTIONS = b"mmi.descriptions"
    NAMES = b"mmi.names"
    STATE = b"mmi.state"


# Asked of one node, active or not: its state, and what its workers say.
OF_ANY_NODE = (Service.STATE.value, Service.DESCRIPTIONS.value)
