"""Inputs to learn from, and how they are divided."""
