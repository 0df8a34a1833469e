"""Enforces priorities between processes. ``brisk.scheduling`` decides the order of requests."""
