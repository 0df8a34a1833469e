"""The sources of a model's bytes: the folder at its URL, and other hosts."""
