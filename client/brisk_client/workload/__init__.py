"""Workloads of requests: read (``parsing``), sent (``runner``), told (``summary``)."""
