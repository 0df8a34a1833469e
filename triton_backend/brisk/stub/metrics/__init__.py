"""Brisk's series on Triton's metrics endpoint. Counts nothing in the way of a request."""
