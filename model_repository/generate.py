#!/usr/bin/env python
"""Generates the large files of the sample entries beside this script; skips what is current.

python model_repository/generate.py [--force] [--only NAME …]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from brisk_bench.samples.expectations import is_current

REPOSITORY = Path(__file__).resolve().parent


def main() -> None:
    names = sorted(file.parent.name for file in REPOSITORY.glob("*/config.pbtxt"))
    parser = argparse.ArgumentParser(description="Generate the sample models.")
    parser.add_argument("--force", action="store_true", help="generate what is current, too")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=names, default=names)
    chosen = parser.parse_args()
    console = Console(highlight=False)
    wanted = [name for name in chosen.only if chosen.force or not is_current(REPOSITORY / name)]
    if not wanted:
        console.print("sample models are current", style="dim")
        return

    from brisk_bench.samples.entries import SAMPLES, generate  # imports torch

    for sample in SAMPLES:
        if sample.name not in wanted:
            continue
        started_s = time.monotonic()
        with console.status(f"generating {sample.name} …"):
            generate(sample, REPOSITORY / sample.name)
        console.print(f"generated {sample.name} in {time.monotonic() - started_s:.1f} s")


if __name__ == "__main__":
    main()
