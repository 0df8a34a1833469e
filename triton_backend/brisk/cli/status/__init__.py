"""``brisk status``."""
