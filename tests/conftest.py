"""Fixtures that several test modules share live in tests/support."""

from hypothesis import settings

# How long one example takes says nothing on a machine that does other things as well.
settings.register_profile("patient", settings(), deadline=None)
settings.load_profile("patient")

pytest_plugins = ["support.broker_fixtures", "support.spark_fixtures"]
