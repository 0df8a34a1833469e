"""Is a retrained cascade better, and does it keep its promise? Judged on rows it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brisk.exits.adaptation.calibration import calibrate_cautiously
from brisk.exits.adaptation.features import Material
from brisk.exits.adaptation.seen_rows import look_at
from brisk.exits.cascade import Cascade, Level
from brisk.exits.guarantee.bounds import lower_bound, upper_bound
from brisk.exits.guarantee.calibration import (
    CascadeCount,
    Promise,
    Scored,
    count_cascade,
)
from brisk.exits.heads.building import network_of
from brisk.exits.heads.lookup import LookUp

LEAST_GAIN = 0.01
"""What a new version has to save more than the old one, of what that saves."""


@dataclass(frozen=True, slots=True, eq=False)
class Exams:
    """``tune`` proposes thresholds: rows as selectors judge them that never saw them. ``recent``
    and ``original`` rows are held out."""

    tune: Scored
    recent: Material
    original: Material


@dataclass(frozen=True, slots=True)
class Judgement:
    """``levels`` to publish, none where the new version is refused; ``reason`` in words.

    ``saved``: seconds that an input of recent traffic saves on average, before and with it.
    """

    levels: tuple[Level, ...]
    reason: str
    saved: tuple[float, float]


def judge(cascade: Cascade, networks: Sequence[LookUp], exams: Exams) -> Judgement:
    """``networks`` in place of the cascade's: the promise is proved on recent rows alone.

    Original ones would make it easy to prove and say nothing of the traffic. They must not refute
    it, so that nothing is learned at the cost of what the caches were made for; and recent traffic
    has to become faster by it.
    """
    saved_s = [exit_.saved_s for exit_ in cascade.exits]
    burden_s = [exit_.burden_s for exit_ in cascade.exits]

    def saved(count: CascadeCount) -> float:
        return count.saving_s(saved_s, burden_s)

    tune = exams.tune
    recent, original = look_at(networks, exams.recent), look_at(networks, exams.original)
    before = count_cascade(
        look_at([network_of(exit_) for exit_ in cascade.exits], exams.recent),
        cascade.levels[0].thresholds,
    )
    levels: list[Level] = []
    after = 0.0
    for level in cascade.levels:
        promise = Promise(level.accuracy, cascade.confidence)
        found = calibrate_cautiously(tune, recent, promise, saved)
        first = not levels
        if found is not None:
            broken = refutation(count_cascade(original, found.thresholds), promise)
            if broken and first:
                return Judgement((), f"on original inputs {broken}", (saved(before), 0.0))
            if not broken:
                levels.append(Level(level.accuracy, found.thresholds, found.count))
        if first and not levels:
            text = (
                f"accuracy {level.accuracy:.2%} cannot be proved with confidence "
                f"{cascade.confidence:.0%} on {recent.scores.shape[1]} held-out recent inputs"
            )
            return Judgement((), text, (saved(before), 0.0))
        if first:
            after = saved(count_cascade(recent, levels[0].thresholds))
    if after <= max(saved(before) * (1 + LEAST_GAIN), 0.0):
        text = (
            f"it saves {after * 1e3:.3f} ms of a recent input on average, "
            f"the version that is served {saved(before) * 1e3:.3f} ms"
        )
        return Judgement((), text, (saved(before), after))
    return Judgement(tuple(levels), "", (saved(before), after))


def refutation(count: CascadeCount, promise: Promise) -> str:
    """In words how ``count`` refutes the promise, with its confidence; empty where it does not."""
    for index, exit_count in enumerate(count.exits):
        most = upper_bound(exit_count.right, exit_count.answered, promise.confidence)
        if exit_count.answered and most < promise.accuracy:
            return f"exit {index} agrees in {exit_count.right} of {exit_count.answered} answers"
    least_wrong = lower_bound(count.wrong_anywhere, count.inputs, promise.confidence)
    if least_wrong > 1 - promise.accuracy:
        return f"{count.wrong_anywhere} of {count.inputs} would be answered otherwise"
    return ""
