"""A pair in memory: the cores of brokers, clients and workers without sockets, in virtual time."""
