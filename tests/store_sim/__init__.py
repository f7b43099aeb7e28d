"""Simulated replicas of the durable store: two machines, disks and links under faults, in virtual time."""
