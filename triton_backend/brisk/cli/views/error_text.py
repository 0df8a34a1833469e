"""The output of a command's error."""

from __future__ import annotations


def tell_error(text: str) -> None:
    """Print an error on the standard error: its first line in red, the others plain."""
    from rich.console import Console  # late: most commands end without an error
    from rich.text import Text

    summary, _, details = text.partition("\n")
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(Text(f"error: {summary}", style="bold red"))
    if details:
        console.print(Text(details))
