"""Brisk inside Triton's stub process: requests to the wire, answers back.

Standard library and numpy only, and too simple to die: Triton does not restart a dead stub.
"""
