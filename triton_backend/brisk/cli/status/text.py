"""A worker's state as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from brisk.protocol.records import ModelStatus, SampleRecord, Status
from brisk.telemetry import METRICS, Kind

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

SHOWN_INCIDENTS = 8


class StatusSnapshot(NamedTuple):
    """What a worker told at ``at_s``, CLOCK_MONOTONIC."""

    status: Status
    samples: tuple[SampleRecord, ...]
    at_s: float


def render(now: StatusSnapshot, before: StatusSnapshot | None) -> Group:
    """Tables of one worker; rates where there is an earlier look."""
    from rich.console import Group
    from rich.text import Text

    status = now.status
    head = (
        f"{status.role} worker {status.pid} on {status.device}: up {_duration(status.uptime_ns)}, "
        f"{status.threads} threads, {status.frontends} model instances connected"
    )
    parts: list[RenderableType] = [Text(head, style="bold"), _models(now, before)]
    if any(model.exits for model in status.models):
        parts.append(exits_table(status.models))
    if status.runs:
        parts.append(_runs(status))
    parts.append(_statistics(now))
    for incident in status.incidents[:SHOWN_INCIDENTS]:
        text = f"{_duration(incident.ago_ns)} ago: {incident.what}"
        parts.append(Text(text, style="red", overflow="ellipsis", no_wrap=True))
    return Group(*parts)


def _models(now: StatusSnapshot, before: StatusSnapshot | None) -> Table:
    table = _table("model", "version", "state", "instances", "waiting", "answered", "per s")
    earlier = {}
    if before is not None:
        earlier = {(each.name, each.version): each.answered for each in before.status.models}
    for model in now.status.models:
        rate = ""
        known = earlier.get((model.name, model.version))
        if before is not None and known is not None:
            rate = f"{max(0, model.answered - known) / (now.at_s - before.at_s):.1f}"
        numbers = (model.uses, model.waiting, model.answered)
        table.add_row(model.name, str(model.version), _state(model), *map(str, numbers), rate)
    hidden = now.status.model_count - len(now.status.models)
    if hidden:
        table.add_row(f"… and {hidden} more")
    return table


def _state(model: ModelStatus) -> str:
    """A ready model's layers may still load: in lanes, and by the requests that need them; then
    those that a start passed over are exchanged for faster ones."""
    state = "ready" if model.is_ready else "loading"
    if model.is_ready and not model.is_settled and model.loaded_layers == model.layers:
        return f"{state}, warming up"
    if model.loaded_layers == model.layers:
        return state
    lanes = f"{model.lanes} lane" + "s" * (model.lanes != 1)
    return f"{state}, {model.loaded_layers} of {model.layers} layers, {lanes}"


def exits_table(models: Sequence[ModelStatus]) -> Table:
    """What learned caches have answered, and what audits have found of it."""
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


def _runs(status: Status) -> Table:
    table = _table("running", "class", "requests", "state", "since", "layers done")
    for run in status.runs:
        state = "parked" if run.is_parked else "computing"
        numbers = (_duration(run.running_ns), str(run.layers_done))
        table.add_row(run.model, run.job_class, str(run.requests), state, *numbers)
    return table


def _statistics(now: StatusSnapshot) -> Table:
    table = _table("counted or held", "of", "value")
    for sample in sorted(now.samples, key=lambda sample: (sample.metric, sample.labels)):
        if sample.metric in METRICS:
            table.add_row(sample.metric, " ".join(sample.labels), _value(sample))
    return table


def _value(sample: SampleRecord) -> str:
    metric = METRICS[sample.metric]
    if metric.kind is Kind.HISTOGRAM:
        *classes, total_ns = sample.values
        count = sum(classes)
        return f"{count}, mean {_duration(total_ns // count)}" if count else "0"
    if metric.kind is Kind.SECONDS:
        return _duration(sample.values[0])
    if metric.name.endswith("_bytes"):
        return f"{sample.values[0] / 2**20:.1f} MiB"
    return str(sample.values[0])


def _duration(duration_ns: int) -> str:
    """Three figures and a unit, for reading."""
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
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position == 0 else "right", no_wrap=True)
    return table
