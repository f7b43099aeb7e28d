"""Clients and workers that find the active node of a pair by themselves.

The package is named ``bstar_client`` so that a program's own ``client.py`` cannot shadow it. It depends on
pyzmq and msgspec alone: neither the state machine library nor YAML nor metrics come along.
"""

__all__: list[str] = []
