"""The plots of published runs, by run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from publication.clients_plot import CLIENTS, clients_plot
from publication.latency_plot import QUANTILES, latency_plot
from publication.promise_plot import promise_plot
from publication.runs import PublishedRun
from publication.start_plot import PARTS, start_plot


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot of a published run.

    ``file``: in docs/pictures.
    ``about``: the text alternative of the picture.
    ``column``: of the run's rows. A run without it is older than the plot: its picture stays as it
      is.
    """

    file: str
    about: str
    column: str
    draw: Callable[[PublishedRun], str]

    def can_be_drawn(self, run: PublishedRun) -> bool:
        """Whether any row has what it is drawn from; that all do is checked when it is drawn."""
        return any(self.column in row for row in run.rows)


PICTURES = {
    "preempt-workloads-C": Picture(
        "realtime.svg",
        "Distribution of a real-time model's latency, side by side",
        QUANTILES,
        latency_plot,
    ),
    "cold-served": Picture(
        "first-answer.svg",
        "What first answers through Triton are made of",
        next(iter(PARTS)),
        start_plot,
    ),
    "exits-fashion": Picture(
        "exits-promise.svg",
        "Speed-up of early exits by promise, with the agreement measured",
        "speed_up",
        promise_plot,
    ),
    "throughput-mlp": Picture(
        "throughput-small.svg",
        "Answers a second of a small model by number of clients, side by side",
        CLIENTS,
        clients_plot,
    ),
    "throughput-mix": Picture(
        "throughput-mix.svg",
        "Answers a second of forty small entries by number of clients, side by side",
        CLIENTS,
        clients_plot,
    ),
}
"""Pictures by the run's file."""


def picture_of(run: PublishedRun) -> Picture | None:
    """Return the run's plot; None if it has none, or lacks what that is drawn from."""
    picture = PICTURES.get(run.file)
    return picture if picture is not None and picture.can_be_drawn(run) else None


def all_pictures(runs: Mapping[str, PublishedRun]) -> Iterator[tuple[str, str]]:
    """Yield name and contents of each plot that can be drawn. Raises UnusableRunError."""
    for run in runs.values():
        if (picture := picture_of(run)) is not None:
            yield picture.file, picture.draw(run)


def left_as_they_are(runs: Mapping[str, PublishedRun]) -> Iterator[str]:
    """Say which pictures stay as they are, since their runs lack the column."""
    for name, picture in PICTURES.items():
        if name in runs and not picture.can_be_drawn(runs[name]):
            yield f"{picture.file} is left as it is: no row of {name}.json has {picture.column}"
