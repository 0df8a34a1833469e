"""Policies of what is fetched next, from whom, and until when: pure functions of snapshots."""
