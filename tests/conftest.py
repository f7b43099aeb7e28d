"""Fixtures that several test modules share live in tests/support."""

pytest_plugins = ["support.broker_fixtures", "support.spark_fixtures"]
