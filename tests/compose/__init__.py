"""The failover of docker-compose.yml, for real: ``make compose-test`` (docs/deployment.md)."""
