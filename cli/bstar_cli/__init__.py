"""The ``bstar`` command: the one room that sees all the others."""

__all__: list[str] = []
