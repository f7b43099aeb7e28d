"""The sessions of clients and workers without sockets, clocks, threads or randomness.

Every machine here has one shape: a message arrives or a deadline passes, and the machine returns a list of
outputs. The shell carries them out in order. The shells (threads, asyncio) own the sockets, the clock and the
callers.
"""
