"""The inputs to learn from, and their division."""
