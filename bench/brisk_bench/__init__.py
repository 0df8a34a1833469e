"""What shows and measures Brisk: the demonstration, sample models, and `brisk bench`.

Nothing that serves or that a client needs is here. ``commands`` lists the benchmarks.
"""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before any side imports it: official builds send it
