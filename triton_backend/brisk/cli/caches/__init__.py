"""``brisk caches``."""
