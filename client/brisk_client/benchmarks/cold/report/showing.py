"""The report on the screen: a table for each part, since the parts' columns differ."""

from __future__ import annotations

import dataclasses

from brisk_client.report import Report, show


def show_parts(report: Report) -> None:
    """Print the parts' rows, then every check and note."""
    for part in dict.fromkeys(row["part"] for row in report.rows):
        rows = [
            {key: value for key, value in row.items() if key != "part"}
            for row in report.rows
            if row["part"] == part
        ]
        show(dataclasses.replace(report, name=f"cold, {part}", rows=rows, checks=[], notes=[]))
    show(dataclasses.replace(report, rows=[]))
