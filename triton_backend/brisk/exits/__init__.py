"""Learned caches: small networks that answer easy inputs from a hidden layer (GATI)."""
