"""Passes that compute at load what needs no input."""
