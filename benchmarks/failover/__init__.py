"""How long clients go without a reply when the active node fails, measured on real processes."""
