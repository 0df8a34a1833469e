"""One job at a time, the most urgent first, each to its end (Clockwork; REEF, 2.2 and 7.1).

A real-time job has the device to itself once it runs, and waits until what runs has ended.
"""

from __future__ import annotations

from brisk.scheduling.policies.base import Policy, always, never

SEQUENTIAL = Policy("sequential", never, always, separates=False, stands_back=False)
