"""Networks, workloads, repositories and sides to compare."""
