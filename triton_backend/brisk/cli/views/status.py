"""The display of workers' states, like `top`: a line for each worker, a row for each model."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, NamedTuple

from brisk.protocol.records import Sample
from brisk.protocol.status import ModelStatus, Status
from brisk.telemetry import metrics
from brisk.telemetry.metrics import BOUNDS_NS

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

SHOWN_INCIDENTS = 8
_WORDS = ("model", "class", "state", "early exits of")
"""The columns of words, aligned left; columns of numbers are aligned right."""


class ProcessUse(NamedTuple):
    """A worker's processor time since it began and its resident memory, by the kernel's report."""

    processor_s: float
    resident_bytes: int


class StatusSnapshot(NamedTuple):
    """A worker's report at ``at_s`` (CLOCK_MONOTONIC). ``use``: None if it is not readable."""

    status: Status
    samples: tuple[Sample, ...]
    at_s: float
    use: ProcessUse | None = None

    @property
    def worker(self) -> tuple[str, int]:
        """The worker's role and process, which identify it in other snapshots."""
        return self.status.role, self.status.pid


def render(
    now: Sequence[StatusSnapshot],
    before: Mapping[tuple[str, int], StatusSnapshot],
    height: int | None,
    width: int,
) -> Group:
    """Return the display of all workers of a runtime, with rates for workers that have an earlier
    snapshot in ``before``.

    ``height``: lines of the terminal; models that do not fit are counted in one line, and what is
    longer than a line is cut. None: all is shown. ``width``: columns; the least important columns
    of the table are dropped if there are too few.
    """
    from rich.console import Group
    from rich.text import Text

    looks = [(each, before.get(each.worker)) for each in now]
    heads = [Text(worker_line(*pair), style="bold") for pair in looks]
    rows = [cells for _, cells in sorted(row for pair in looks for row in model_rows(*pair))]
    hidden = sum(each.status.model_count - len(each.status.models) for each in now)
    incidents = sorted(each for snapshot in now for each in snapshot.status.incidents)
    incidents = incidents[:SHOWN_INCIDENTS]
    exits = [model for each in now for model in each.status.models if model.exits]
    # both workers report it, the foreground one first
    learning = {
        m.name: m.learning for each in reversed(now) for m in each.status.models if m.learning
    }
    arriving = {m.name: m.arriving for each in now for m in each.status.models if m.arriving}
    room = len(rows)
    if height is not None:
        others = len(heads) + len(incidents) + sum(4 + len(model.exits) for model in exits)
        room = max(3, height - others - len(learning) - len(arriving) - 5)
    parts: list[RenderableType] = [_models(rows, hidden, room, width)]
    if exits:
        parts.append(exits_table(exits))
    told = [(f"early answers of {name}: {words}", "") for name, words in learning.items()]
    told += [(f"{name} arrives: {words}", "") for name, words in arriving.items()]
    told += [(f"{_duration(each.ago_ns)} ago: {each.what}", "red") for each in incidents]
    is_cut = height is not None
    overflow: Literal["ellipsis", "fold"] = "ellipsis" if is_cut else "fold"
    parts += [Text(text, style, overflow=overflow, no_wrap=is_cut) for text, style in told]
    return Group(*heads, *parts)


def worker_line(now: StatusSnapshot, before: StatusSnapshot | None) -> str:
    """Return a line on a worker: its role, process, use of the machine, and work."""
    status = now.status
    words = [f"{status.role} {status.pid} on {status.device}", f"up {_duration(status.uptime_ns)}"]
    if now.use is not None:
        if before is not None and before.use is not None and now.at_s > before.at_s:
            share = (now.use.processor_s - before.use.processor_s) / (now.at_s - before.at_s)
            words.append(f"{share:.0%} of a core")
        else:
            words.append(f"{now.use.processor_s:.1f} s of processor")
        words.append(f"{now.use.resident_bytes / 2**20:.0f} MiB")
    waiting = sum(model.waiting for model in status.models)
    running = sum(run.requests for run in status.runs if not run.is_parked)
    parked = sum(run.requests for run in status.runs if run.is_parked)
    words.append(f"{running} running, {parked} parked, {waiting} queued")
    words.append(f"{status.threads} threads, {status.frontends} model instances")
    return " · ".join(words)


def model_rows(
    now: StatusSnapshot, before: StatusSnapshot | None
) -> Iterator[tuple[tuple[float, int, str], tuple[str, ...]]]:
    """Yield, for each model that the worker reports, its sort key (busy ones first) and its cells.

    A cell is empty if nothing was counted yet. Answers a second are since the snapshot before.
    Times are from the first segment of a run to its last, of all runs, by the histogram's classes.
    """
    starts: dict[tuple[str, ...], int] = defaultdict(int)
    for sample in now.samples:
        if sample.metric == metrics.STARTS.name:
            starts[sample.labels[:2]] += sample.values[0]
    earlier = {}
    if before is not None and now.at_s > before.at_s:
        earlier = {(each.name, each.version): each.answered for each in before.status.models}
    for model in now.status.models:
        key = (model.name, str(model.version))
        earlier_count = earlier.get((model.name, model.version))
        per_s = None
        if before is not None and earlier_count is not None:
            per_s = max(0, model.answered - earlier_count) / (now.at_s - before.at_s)
        times_s = (quantile_s(model.durations, share) for share in (0.5, 0.99))
        early = sum(exit_.answered for exit_ in model.exits)
        yield (
            (-(per_s or 0.0), -model.answered, model.name),
            (
                f"{model.name}/{model.version}",
                model.job_class if now.status.role == "foreground" else "besteffort",
                _state(model),
                f"{model.weight_bytes / 2**20:.1f} MiB" if model.weight_bytes else "",
                str(model.waiting),
                "" if per_s is None else f"{per_s:.1f}",
                *("" if each is None else _duration(int(each * 1e9)) for each in times_s),
                f"{early / model.offered_rows:.0%}" if model.offered_rows else "",
                str(starts[key]),
                str(model.failed),
            ),
        )


def quantile_s(classes: Sequence[int], share: float) -> float | None:
    """Return a quantile of a histogram of durations in seconds, linear within a class, like
    Prometheus' ``histogram_quantile``; None if nothing was counted."""
    rank = share * sum(classes)
    if not rank:
        return None
    reached = list(accumulate(classes))
    place = bisect_left(reached, rank)
    if place == len(BOUNDS_NS):
        return BOUNDS_NS[-1] / 1e9
    lowest = BOUNDS_NS[place - 1] if place else 0
    into = (rank - (reached[place] - classes[place])) / classes[place]
    return (lowest + into * (BOUNDS_NS[place] - lowest)) / 1e9


_COLUMNS = (
    *("model", "class", "state", "memory", "queued", "per s", "p50", "p99", "early"),
    *("starts", "errors"),
)
_BETWEEN = 2
"""The number of blanks between the table's columns."""

_FIRST_TO_GO = ("starts", "memory", "early", "class", "queued", "state", "errors", "p50")


def _models(rows: Sequence[tuple[str, ...]], hidden: int, room: int, width: int) -> Table:
    shown = rows if len(rows) <= room else rows[: room - 1]
    widths = {
        name: max(map(len, (name, *(cells[place] for cells in shown))))
        for place, name in enumerate(_COLUMNS)
    }
    columns = set(_COLUMNS)
    for name in _FIRST_TO_GO:
        if sum(widths[each] + _BETWEEN for each in columns) + _BETWEEN > width:
            columns.remove(name)
    table = _table(*(name for name in _COLUMNS if name in columns))
    for cells in shown:
        named = zip(_COLUMNS, cells, strict=True)
        table.add_row(*(cell for name, cell in named if name in columns))
    hidden += len(rows) - len(shown)
    if hidden:
        table.add_row(f"… and {hidden} more")
    return table


def _state(model: ModelStatus) -> str:
    """Return a text on a model's state.

    A ready model's segments may still load: in loader threads, and by the requests that need them.
    Then sessions that a quick start chose are exchanged for faster ones. Some segments stay in
    sessions that they share with models of their structure.
    """
    state = "ready" if model.is_ready else "loading"
    if model.loaded_layers != model.layers:
        return f"{state}, {model.loaded_layers} of {model.layers}"
    if model.is_ready and not model.is_settled:
        state = "warming up"
    return f"{state}, {model.shared_layers} shared" if model.shared_layers else state


def exits_table(models: Sequence[ModelStatus]) -> Table:
    """Return a table of the answers of learned caches, and the results of their audits."""
    table = _table("early exits of", "revision", "exit", "answers", "audited", "agrees", "state")
    for model in models:
        for exit_ in model.exits:
            share = f"{exit_.answered / model.offered_rows:.1%}" if model.offered_rows else ""
            agrees = f"{exit_.agreed / exit_.audited:.1%}" if exit_.audited else ""
            table.add_row(
                model.name,
                str(model.revision),
                exit_.name,
                share,
                str(exit_.audited),
                agrees,
                exit_.state,
            )
    return table


def _duration(duration_ns: int) -> str:
    """Return a duration as text: up to three figures and a unit."""
    seconds = duration_ns / 1e9
    if seconds >= 120:
        minutes = int(seconds // 60)
        return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.3g} ms"


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in columns:
        justify: Literal["left", "right"] = "left" if column in _WORDS else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    return table
