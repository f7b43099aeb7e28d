"""Sockets and the loop that serves them: reactor, connections, CURVE, HTTP."""
