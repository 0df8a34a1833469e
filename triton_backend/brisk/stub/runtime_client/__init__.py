"""The stub's connection to the runtime's workers. It does not depend on ``pb_utils``."""
