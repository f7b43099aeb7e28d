"""The future of a call that a task has begun and does not wait for."""

import asyncio

CallFuture = asyncio.Task
