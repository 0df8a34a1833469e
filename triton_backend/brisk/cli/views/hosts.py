"""The text of ``brisk explain --hosts``: which parts of a model would start on which hosts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from brisk.errors import ArtefactError, counted
from brisk.exits.files.container import tapped_values
from brisk.exits.files.versions import latest
from brisk.partitions.cost import PartitionPlan, Pricing, turns_of
from brisk.partitions.network import HostNetwork
from brisk.partitions.plan import best_plans
from brisk.partitions.profile import ModelProfile
from brisk.publishing.measuring import measured_profile
from brisk.segments.model.sources import BareModel, checked_model
from brisk.segments.prepared.form import PreparedModel, find_prepared
from brisk.segments.source import SegmentPlan, Source
from brisk.segments.starting import usable_cores
from brisk.stub.config.session_tuning import read_tuning
from brisk.tuning import SessionTuning
from brisk.view.entry_text import written_config


def hosts_text(
    file: Path, entry: Path | None, network: HostNetwork, *, anywhere: bool
) -> Iterator[str]:
    """Yield lines of text: the best plan for each number of hosts from 1 on, then the best of all.

    The model's segments are run in this process, one by one, on made-up inputs. ``entry``: the
    model's directory, whose ``config.pbtxt`` applies. ``anywhere``: cuts are allowed at every
    boundary tensor of the model, not only between the segments that it is served in.

    Raises InvalidModelError if the model cannot be loaded or run so, InvalidConfigurationError as
    a load does.
    """
    tuning = SessionTuning()
    if entry is not None:
        tuning = read_tuning(written_config(entry), entry, file).tuning
    source = _served(file, tuning)
    profile = measured_profile(source)
    source_name = "prepared form" if source.origin == "artefact" else "file"
    if anywhere:
        source = BareModel(file, usable_cores(), tapped_values(latest(file)), tuning, longest_ns=0)
        profile = _as_fast_as(profile.run_s, measured_profile(source))
        source_name = "file"
    count = len(profile)
    yield (
        f"{file}: {counted(count, 'segment')} of its {source_name}, "
        f"{profile.weight_bytes / 1e6:.1f} MB; a request takes {_time(profile.run_s)} here on "
        f"{counted(usable_cores(), 'thread')}"
    )
    yield (
        f"  links of {network.hosts[0].link_mbit:g} Mbit/s each way, "
        f"{network.registry_mbit:g} Mbit/s from the registry for all hosts together"
    )
    pricing = Pricing(profile, network)
    turns = partial(turns_of, 1)
    plans = best_plans(pricing, turns)
    for plan in plans:
        yield from _plan_text(pricing, plan, source.plan)
    if len(plans) < len(network.hosts):
        more = "" if anywhere else "; more where cuts may stand elsewhere (--anywhere)"
        yield f"  no part is less than a segment: {counted(count, 'host')} at most{more}"
    best = min(plans, key=lambda plan: (plan.latency_s(turns), plan.parts))
    gain = plans[0].cost.first_answer_s / best.cost.first_answer_s
    words = f"{gain:.2f} times as soon as on one" if best.parts > 1 else "parts do not pay"
    yield f"  best: {counted(best.parts, 'host')}, {words}"


def _served(file: Path, tuning: SessionTuning) -> Source:
    """Return the model as it would start on this machine: its prepared form, else its file."""
    threads, taps = usable_cores(), tapped_values(latest(file))
    prepared = find_prepared(file, taps) if tuning.keeps_answers else None
    if prepared is not None:
        try:
            return PreparedModel(prepared, file, threads, taps, tuning)
        except ArtefactError:
            pass  # a start would not use it, either
    return checked_model(file, threads, taps, tuning)


def _as_fast_as(run_s: float, profile: ModelProfile) -> ModelProfile:
    """Scale a profile's run times so that they add up to ``run_s``: many short sessions take
    longer than the few that a part would have.
    """
    share = run_s / profile.run_s
    return ModelProfile(
        tuple(replace(each, run_s=each.run_s * share) for each in profile.segments)
    )


def _plan_text(pricing: Pricing, plan: PartitionPlan, segments: SegmentPlan) -> Iterator[str]:
    """Yield a line of text for the plan, and one for each of its hosts."""
    cost, bound = plan.cost, pricing.start_bound(plan)
    pulls = pricing.network.pulls(plan.parts)
    pull = pulls[bound.part]
    words = {
        "link": f"the link of host {bound.part + 1}",
        "source": f"the uplink of {pull.source}, shared by {counted(pull.sharers, 'host')}",
        "sessions": f"making the sessions of host {bound.part + 1}",
    }
    yield (
        f"  {counted(plan.parts, 'host')}: first answer after {_time(cost.first_answer_s)}, "
        f"a request {_time(cost.request_s)}; the start waits for {words[bound.by]}"
    )
    before = pricing.profile.bytes_before()
    for part, (first, end) in enumerate(pairwise((0, *plan.cuts, len(pricing.profile)))):
        yield (
            f"    host {part + 1}: {_span_text(segments, first, end)}, "
            f"{(before[end] - before[first]) / 1e6:.1f} MB from {pulls[part].source} at "
            f"{pulls[part].mbit:.0f} Mbit/s{_live_text(pricing, end)}"
        )


def _span_text(segments: SegmentPlan, first: int, end: int) -> str:
    """Return a text like ``segments 3 to 7 (conv_9 to relu_20)``."""
    ends = [segments.segments[index].words.rpartition(", ")[2] for index in (first, end - 1)]
    begin, behind = ends[0].partition(" to ")[0], ends[1].rpartition(" to ")[2]
    name = f"segment {first}" if end - first == 1 else f"segments {first} to {end - 1}"
    return f"{name} ({begin} to {behind})"


def _live_text(pricing: Pricing, end: int) -> str:
    if end == len(pricing.profile):
        return ""
    return f", hands on {pricing.profile.segments[end - 1].live_bytes / 1e6:.2f} MB"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
