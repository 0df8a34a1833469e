"""The courier's log: lines on the standard error of the server that started the courier.

URLs are written as ``sources.addresses.shown_url`` returns them.
"""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("brisk.courier")


def start_logging() -> None:
    lines = _CourierLines()
    lines.setFormatter(logging.Formatter("brisk: courier: %(message)s"))
    LOGGER.setLevel(logging.INFO)
    LOGGER.handlers = [lines]
    LOGGER.propagate = False


class _CourierLines(logging.StreamHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # logging's name
        """Ignore a line that cannot be written: the server at the other end of the pipe ended."""
