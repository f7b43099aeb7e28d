"""The session of a worker with its nodes, in each dialect."""
