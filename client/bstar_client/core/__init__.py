"""The sessions of clients and workers without sockets, clocks, threads or randomness.

Every machine here has one shape: something arrives or a deadline passes, and a list of outputs comes back
that the shell carries out in order. The shells (threads now, asyncio beside them) own what these must
not: sockets, time, and whoever waits for a reply.
"""
