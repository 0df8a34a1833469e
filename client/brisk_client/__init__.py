"""A client of Brisk's: what a request may say of its urgency, a plain client, and workloads.

It needs numpy and tritonclient, and nothing of the server's package.
"""

__version__ = "0.1.0"
