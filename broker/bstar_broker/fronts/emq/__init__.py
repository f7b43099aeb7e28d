"""EventMQ (eMQP/1.0): router and scheduler inside the node (docs/patterns.md)."""
