"""Brisk inside Triton's stub process: it passes requests to the runtime, and answers to Triton.

Standard library and numpy only, and kept simple: Triton does not restart a crashed stub.
"""
