"""Objects that end with their ``with`` block."""

from typing import Self


class Closing:
    """Calls ``close`` at the end of its block."""

    def close(self) -> None:
        """Free what this object holds. Idempotent, in bounded time."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
