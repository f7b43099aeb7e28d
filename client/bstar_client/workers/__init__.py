"""What the workers for threads and asyncio share: handlers, the dispatch of requests, stores of replies."""
