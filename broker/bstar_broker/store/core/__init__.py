"""The store's rules and machines, sans-I/O: no disk, no socket, no clock."""
