"""Files of a model's caches: written as a whole, and read only if they are whole."""
