"""Stubs as forks of one process that has Python and the frontend in memory."""
