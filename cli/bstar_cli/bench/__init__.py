"""``bstar bench``: how many requests a pair answers, how fast, and what they cost it."""

from bstar_cli.bench.command import bench

__all__ = ["bench"]
