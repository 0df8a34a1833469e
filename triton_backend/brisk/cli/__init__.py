"""The ``brisk`` command. One file per subcommand; heavy imports happen inside the functions."""

from __future__ import annotations

import sys

from brisk.cli.application import application
from brisk.errors import BriskError


def main() -> None:
    """Entry point: a deliberate error is one red line (and its details) and exit status 1."""
    try:
        application()
    except BriskError as error:
        from rich.console import Console  # late: most commands end without an error
        from rich.text import Text

        summary, _, details = str(error).partition("\n")
        console = Console(stderr=True, soft_wrap=True, highlight=False)
        console.print(Text(f"error: {summary}", style="bold red"))
        if details:
            console.print(Text(details))
        sys.exit(1)
