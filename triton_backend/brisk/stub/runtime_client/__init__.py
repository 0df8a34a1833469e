"""The stub's connection to the runtime's workers. Knows nothing of ``pb_utils``."""
