"""Statistics: every metric is declared once, with values per process and differences per reader.

Standard library only: the stub, the workers and all other processes use the same declarations.
``count`` and ``observe`` write to this process's own statistics.
"""

from brisk.telemetry.statistics import STATISTICS

count = STATISTICS.count
observe = STATISTICS.observe

__all__ = ["STATISTICS", "count", "observe"]
