"""The client and the worker for asyncio: the methods of ``bstar_client.sync``, awaited."""
