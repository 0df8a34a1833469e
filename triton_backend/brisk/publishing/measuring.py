"""Measuring a model's segments on this machine, for hosts that run them while bytes arrive, and
for planners that split a model over several hosts (Flashpoint, section 4.1)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from brisk.errors import InvalidModelError
from brisk.partitions.profile import ModelProfile, SegmentProfile
from brisk.segments.model.sources import BareModel
from brisk.segments.prepared.trial import SegmentTrial
from brisk.segments.source import SegmentSpec, Source

RUNS = 5
"""The runs of a segment, after one that warms it; the fastest counts: other load on the machine is
not the model's."""


def measured_profile(source: Source) -> ModelProfile:
    """Open, warm and run each segment on the values before it, from made-up inputs; return the
    model's profile.

    Bytes of a segment are those that opening it reads. Raises InvalidModelError if the model takes
    inputs that cannot be made up, or a boundary tensor is not one of numbers.
    """
    plan, trial = source.plan, SegmentTrial(source.plan)
    profiles = []
    for spec in plan.segments:
        if isinstance(source, BareModel):
            source.open(spec.index)  # drops a session that ``check`` has made
        started_s = time.perf_counter()
        first = source.open(spec.index)
        load_s = time.perf_counter() - started_s
        opened = source.open_warm(spec.index) or first
        session = opened.session if opened.run is None else opened
        outputs = (trial.run if spec.index else trial.run_first)(spec, session)
        if outputs is None:
            raise InvalidModelError(
                f"model '{plan.name}' cannot be measured: segment {spec.index} ({spec.words}) "
                "takes no inputs that are made up"
            )
        run_s = min(_run_s(trial, spec, session) for _ in range(RUNS))
        trial.go_on(spec, outputs)
        assert trial.values is not None
        live = trial.values
        if spec.index == len(plan.segments) - 1:
            live = {each.name: live[each.name] for each in plan.outputs}
        weight_bytes = sum(each.size for each in source.reads(spec.index))
        live_bytes = sum(_bytes_of(name, value) for name, value in live.items())
        profiles.append(
            SegmentProfile(
                weight_bytes=weight_bytes, run_s=run_s, live_bytes=live_bytes, load_s=load_s
            )
        )
    if not any(each.weight_bytes for each in profiles):
        profiles[0] = replace(profiles[0], weight_bytes=source.weight_bytes)
    return ModelProfile(tuple(profiles))


def _run_s(trial: SegmentTrial, spec: SegmentSpec, session: Any) -> float:
    started_s = time.perf_counter()
    trial.run(spec, session)
    return time.perf_counter() - started_s


def _bytes_of(name: str, value: Any) -> int:
    if not value.is_tensor() or value.data_type() == "tensor(string)":
        raise InvalidModelError(f"value '{name}' is no tensor of numbers: it is not sent to hosts")
    return int(value.tensor_size_in_bytes())
