"""The sockets of clients and workers: links to nodes, and what is at an endpoint without a connection."""
