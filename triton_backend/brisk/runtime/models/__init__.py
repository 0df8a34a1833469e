"""Models in memory, from load to removal; entry point ``table.SessionTable``."""
