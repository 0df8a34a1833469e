"""The workloads, side against side: runs, rounds, whether the machine was quiet, checks."""
