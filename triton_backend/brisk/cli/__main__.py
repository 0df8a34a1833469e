"""``python -m brisk.cli`` is the same as ``brisk``."""

from brisk.cli import main

main()
