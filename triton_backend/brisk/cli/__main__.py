"""``python -m brisk.cli``: the same as ``brisk``."""

from brisk.cli import main

main()
