"""The client and the worker for threads."""
