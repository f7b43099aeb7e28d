"""The durable store: requests that survive both nodes, replicated over the pair (docs/durable.md)."""
