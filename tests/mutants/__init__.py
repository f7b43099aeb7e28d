"""Mutants: small, wrong changes of the product, each of which a named test must notice. ``make mutants`` runs
them; docs/simulation.md says how to add one. The catalogue is the ``*.toml`` files of this folder.
"""
