"""What a workload consists of. Sends nothing."""
