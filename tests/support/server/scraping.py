"""Brisk's series on a server's metrics endpoint."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable

from brisk.triton.launch import TritonServer

PATIENCE_S = 30.0
PUBLICATION_S = 0.5
"""Far longer than one publication takes, which a scrape may find half done."""
_LINE = re.compile(r"^(brisk_\w+)(?:\{(.*)\})? (\S+)$")

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by name and labels."""


def scrape(server: TritonServer) -> Series:
    with urllib.request.urlopen(f"http://{server.endpoints.metrics}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    series: Series = {}
    for line in lines:
        if matched := _LINE.match(line):
            labels = re.findall(r'(\w+)="([^"]*)"', matched[2] or "")
            series[matched[1], frozenset(labels)] = float(matched[3])
    return series


def value(series: Series, name: str, **labels: str) -> float:
    """Return the sum over all series that have these labels."""
    pairs = {(key.rstrip("_"), each) for key, each in labels.items()}
    return sum(each for (own, has), each in series.items() if own == name and pairs <= has)


def wait_for(server: TritonServer, condition: Callable[[Series], bool]) -> Series:
    """Return the series once the condition holds and what was counted at that time is published
    whole."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition(series := scrape(server)):
        assert time.monotonic() < deadline_s, sorted({name for name, _ in series})
        time.sleep(0.1)
    time.sleep(PUBLICATION_S)
    return scrape(server)
