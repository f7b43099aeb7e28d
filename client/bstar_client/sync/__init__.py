"""The client and the worker for threads."""

from bstar_client.sync.client import HAClient
from bstar_client.sync.worker import Worker

__all__ = ["HAClient", "Worker"]
