"""The pages and files that are written from the code: ``python -m pages --write``, or ``--check``."""
