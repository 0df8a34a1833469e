"""What a model instance's requests came to, counted as each is answered."""

from __future__ import annotations

from brisk.errors import BriskError, InternalError
from brisk.telemetry import Statistics, metrics


class RequestAccount:
    """Counts the answers of one model version. Any thread may use it."""

    def __init__(self, statistics: Statistics, model: str, version: int) -> None:
        self._statistics = statistics
        self._model = (model, str(version))

    def succeeded(self, job_class: str, took_ns: int, queue_ns: int, execution_ns: int) -> None:
        """``took_ns``: from arrival in the frontend to the answer; the others as a Result says."""
        labels = (*self._model, job_class)
        statistics = self._statistics
        statistics.count(metrics.REQUESTS, labels)
        statistics.observe_ns(metrics.REQUEST_SECONDS, labels, took_ns)
        statistics.observe_ns(metrics.QUEUE_SECONDS, labels, queue_ns)
        statistics.observe_ns(metrics.EXECUTION_SECONDS, labels, execution_ns)

    def failed(self, job_class: str, error: Exception) -> None:
        kind = error.code if isinstance(error, BriskError) else InternalError.code
        labels = (*self._model, job_class)
        self._statistics.count(metrics.REQUESTS, labels)
        self._statistics.count(metrics.ERRORS, (*labels, kind))
