"""``brisk trace``."""
