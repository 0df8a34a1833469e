"""Requests in flight: admitted, joined to runs, answered once. Entry point ``table.RequestTable``;
computes nothing.
"""
