"""The future of a call that a task has begun and does not wait for."""

import asyncio

from bstar_client.core.calls import Reply

CallFuture = asyncio.Task[Reply]
