"""A client for Brisk: urgency of requests, a plain client, and workloads.

It needs numpy and tritonclient, and nothing of the server's package.
"""

__version__ = "0.1.0"
