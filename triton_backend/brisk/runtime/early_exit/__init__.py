"""Learned caches while they are served: audited, sampled, taught, replaced."""
