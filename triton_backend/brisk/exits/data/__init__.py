"""Inputs to learn from, and their division."""
