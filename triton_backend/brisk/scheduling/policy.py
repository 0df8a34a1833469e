"""Policies: the order in which waiting jobs run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from brisk.scheduling.job import Job

OrderingKey: TypeAlias = Callable[[Job[Any]], tuple[int, ...]]
"""Smaller runs first. The last element is the job's sequence, so no two keys are equal."""


def first_come_first_served(job: Job[Any]) -> tuple[int, ...]:
    """Order of arrival, over all models and classes."""
    return (job.sequence,)
