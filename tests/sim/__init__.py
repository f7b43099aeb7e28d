"""A deterministic simulator of a whole pair: nodes, clients and workers in virtual time, under faults.

It drives the very classes that production runs (``bstar_broker.core``, ``bstar.star``,
``bstar_client.core``) and mirrors only what their shells do: carry outputs out, keep deadlines, tell of
broken connections. One seed makes one run, to the last digit. docs/simulation.md tells how to use it and
what it checks.
"""
