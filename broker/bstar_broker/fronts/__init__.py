"""Other protocols on sockets of their own, on the same node (``bstar_broker.core.front``)."""
