"""Models run with their caches: the exit thread, and frames that answer early. No torch."""
