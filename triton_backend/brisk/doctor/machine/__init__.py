"""Checks of the machine, one a file."""
