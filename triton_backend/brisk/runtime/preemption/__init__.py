"""Enforces priorities between processes. ``brisk.scheduling`` decides who goes first."""
