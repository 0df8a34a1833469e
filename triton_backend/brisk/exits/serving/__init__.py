"""Running a model with its caches: the exit thread, and frames that answer early. No torch."""
