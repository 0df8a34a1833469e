"""The runtime's log: lines on the standard error of the server that started it.

A warning is something that the server's operator may have to act on; ``brisk status`` shows the
newest warnings, too.
"""

from __future__ import annotations

import logging

from brisk.telemetry.events import INCIDENTS

LOGGER = logging.getLogger("brisk")


def start_logging() -> None:
    """Start the log in this process and in those that it forks."""
    lines = _Lines()
    lines.setFormatter(logging.Formatter("brisk: %(message)s"))
    LOGGER.setLevel(logging.INFO)
    LOGGER.handlers = [lines, _Status(logging.WARNING)]
    LOGGER.propagate = False


class _Lines(logging.StreamHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # logging's name
        """Do nothing: the server, at the other end of the pipe, is gone."""


class _Status(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        INCIDENTS.note(record.getMessage())
