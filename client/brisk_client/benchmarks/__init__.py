"""Measurements that `brisk bench` runs, one module each; every one returns a report."""
