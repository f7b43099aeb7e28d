"""The arguments of clients and workers: their checks, their settings, the frames of a body."""
