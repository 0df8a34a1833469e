"""Where bytes of a model come from: the folder at its URL, and other hosts."""
