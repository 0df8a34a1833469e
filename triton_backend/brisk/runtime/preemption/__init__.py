"""How priorities are enforced between processes. Who goes first is ``brisk.scheduling``."""
