"""Workloads of requests: ``parsing`` reads them, ``runner`` sends them, ``results`` counts."""
