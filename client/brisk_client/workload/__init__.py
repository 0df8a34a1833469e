"""Loads as DISB describes them, sent to any Triton server, and what came of them."""
