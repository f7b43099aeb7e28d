"""An ASGI application that lets HTTP programs call a pair: ``HttpFront`` (docs/http.md).

    front = HttpFront(client)          # an AsyncHAClient, opened in the server's event loop

``bstar http`` and the node's ``fronts.http`` serve it; any ASGI server can. It is a client of the pair like
any other: it decides nothing about queues, roles or redelivery. It needs the extra ``http``.
"""

from typing import TYPE_CHECKING

from bstar.base.on_demand import on_demand

if TYPE_CHECKING:
    from bstar_client.asgi.front import HttpFront
    from bstar_client.asgi.settings import FrontSettings

__all__ = ["FrontSettings", "HttpFront"]

__getattr__ = on_demand(
    __name__, {"bstar_client.asgi.front": ["HttpFront"], "bstar_client.asgi.settings": ["FrontSettings"]}
)
