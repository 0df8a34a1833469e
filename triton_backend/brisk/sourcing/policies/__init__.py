"""Policies of which chunks to fetch next, from which source, how long: pure, from snapshots."""
