"""What Brisk counts: every metric declared once, values per process, differences per reader.

Standard library only: the stub, the workers and whatever else counts use the same declarations.
``count``, ``observe_ns`` and ``hold`` write to this process's own statistics.
"""

from brisk.protocol.records import Sample
from brisk.telemetry.metrics import METRICS, Kind, Metric
from brisk.telemetry.statistics import STATISTICS, Statistics

count = STATISTICS.count
observe_ns = STATISTICS.observe_ns
hold = STATISTICS.hold

__all__ = [
    "METRICS",
    "STATISTICS",
    "Kind",
    "Metric",
    "Sample",
    "Statistics",
    "count",
    "hold",
    "observe_ns",
]
