"""No control: best-effort work is the equal of real-time work (REEF, 2.2: GPU streams)."""

from __future__ import annotations

from brisk.scheduling.policies.base import Policy, always, never

SHARED = Policy("shared", never, always, separates=True, stands_back=False)
