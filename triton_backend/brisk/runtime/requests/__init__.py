"""Requests in flight: admitted, joined to runs, and answered once. Entry point
``table.RequestTable``; computes nothing.
"""
