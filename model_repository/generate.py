#!/usr/bin/env python
"""Generates the large files of the sample entries beside this script; skips what is current.

python model_repository/generate.py [--force] [--only NAME …]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from brisk_client.samples.entries import SAMPLES, generate, is_current

REPOSITORY = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate the sample models.")
    parser.add_argument("--force", action="store_true", help="generate what is current, too")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", choices=[sample.name for sample in SAMPLES]
    )
    chosen = parser.parse_args()
    console = Console()
    for sample in SAMPLES:
        entry = REPOSITORY / sample.name
        if chosen.only and sample.name not in chosen.only:
            continue
        if not chosen.force and is_current(sample, entry):
            console.print(f"[dim]{sample.name}: current[/dim]")
            continue
        started_s = time.monotonic()
        with console.status(f"generating {sample.name} …"):
            generate(sample, entry)
        console.print(f"{sample.name}: generated in {time.monotonic() - started_s:.1f} s")


if __name__ == "__main__":
    main()
