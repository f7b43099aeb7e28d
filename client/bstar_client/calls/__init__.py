"""What the clients for threads and asyncio share: requests, durable requests, the delivery of outcomes."""
