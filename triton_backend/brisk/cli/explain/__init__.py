"""``brisk explain``."""
