"""The client and the worker for asyncio: the words of ``bstar_client.sync``, awaited."""

from bstar_client.aio.client import AsyncHAClient
from bstar_client.aio.worker import AsyncHandler, AsyncWorker

__all__ = ["AsyncHAClient", "AsyncHandler", "AsyncWorker"]
