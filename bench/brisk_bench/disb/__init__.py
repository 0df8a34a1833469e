"""REEF's benchmark on this machine: five networks, six workloads, and servers to compare."""
