"""Starts stubs as forks of one process that has Python and Brisk in memory."""
