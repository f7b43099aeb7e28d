"""The Majordomo broker that a Binary Star node serves.

``core`` holds the queues and the dispatcher without any I/O; ``server`` carries its outputs out on one ROUTER
socket. The broker never imports the client.
"""

__all__: list[str] = []
