"""Processes and clients that send a workload."""
