"""Measurements that `brisk bench` runs, one module each; every one returns a report."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before any side imports it: official builds send it
