"""Learned caches while they are served: audited, sampled, taught, replaced. Entry point
``cache_watch.cache_watch``; no request waits for any of it.
"""
