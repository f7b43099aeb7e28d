"""What peers may cost a node: connections to dead machines, memory, unread replies."""
