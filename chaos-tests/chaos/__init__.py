"""Faults against real processes: what starts them, what breaks them, and what judges what they did."""
