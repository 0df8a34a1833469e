"""The benchmarks' table of all commands."""

from __future__ import annotations

from pathlib import Path

import brisk_bench


def test_the_table_has_every_command_and_nothing_else() -> None:
    """A command's module has a ``main`` that takes the arguments."""
    root = Path(brisk_bench.__path__[0]).resolve()
    commands = {
        ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        for file in root.rglob("*.py")
        if "\ndef main(arguments: Sequence[str]) -> int:" in file.read_text()
    }
    assert commands == set(brisk_bench.COMMANDS.values())
