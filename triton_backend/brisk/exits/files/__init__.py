"""Files of a model's caches: written whole, believed only if they are."""
