"""Simple Pirate and Paranoid Pirate (6/PPP) at a node (docs/patterns.md)."""
