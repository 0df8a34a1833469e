"""Learned caches while they are served: they are audited, sampled, adapted and replaced.

The entry point is ``cache_watch.cache_watch``; no request waits for any of it.
"""
