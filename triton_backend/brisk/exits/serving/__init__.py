"""Running a model with its caches: the look-up lane, and frames that answer early. No torch."""
