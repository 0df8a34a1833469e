"""The judgement of a retrained cascade on rows that it never saw: whether it is better, and keeps
its promise."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from brisk.exits.adaptation.features import Material, look_at
from brisk.exits.cascade import Cascade, Level
from brisk.exits.guarantee.calibration import (
    CascadeCount,
    Promise,
    Scored,
    count_cascade,
    lower_bound,
    upper_bound,
)
from brisk.exits.guarantee.proposals import calibrate_cautiously
from brisk.exits.heads.exit_head import ExitHead
from brisk.exits.learning.exporting import network_of

LEAST_GAIN = 0.01
"""The fraction by which a new version has to save more than the old one."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The performance of a version on recent traffic."""

    saved_s: float
    """The time saved for an input on average."""
    doubt: str
    """The evidence against the promise; empty if there is none."""

    @property
    def sound_s(self) -> float:
        """The seconds saved by answers that are as good as promised; 0 if that is in doubt."""
        return 0.0 if self.doubt else self.saved_s


def standing_of(cascade: Cascade, recent: Material) -> Standing:
    """Return the performance of ``cascade`` on ``recent`` rows, which are held out.

    The first level is in doubt by less agreement than it promises, however little that proves: no
    version replaces it but one that proves that level on the same rows. Against a stricter level
    stands only what refutes it. A new version may lack it, so that the model answers all who ask
    for it; and a single mistake in a hundred answers is less than 99.5 %, but says nothing.
    """
    scored = look_at([network_of(exit_) for exit_ in cascade.exits], recent)
    first, *stricter = [count_cascade(scored, level.thresholds) for level in cascade.levels]
    doubt = doubted(first, cascade.levels[0].accuracy)
    for count, level in zip(stricter, cascade.levels[1:], strict=True):
        doubt = doubt or refutation(count, Promise(level.accuracy, cascade.confidence))
    return Standing(saving_s(cascade, first), doubt)


def saving_s(cascade: Cascade, count: CascadeCount) -> float:
    """Return how many seconds such counts of ``cascade`` save, of an input on average."""
    return count.saving_s(
        [exit_.saved_s for exit_ in cascade.exits], [exit_.overhead_s for exit_ in cascade.exits]
    )


def is_better(new_s: float, served: Standing, *, has_more_levels: bool = False) -> bool:
    """Whether saving ``new_s`` is enough to replace the version that is served; one that has its
    levels and more need not save more."""
    gain = -LEAST_GAIN if has_more_levels else LEAST_GAIN
    return new_s > max(served.sound_s * (1 + gain), 0.0)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The decision about a new version."""

    levels: tuple[Level, ...]
    """The levels to publish; empty if the new version is refused."""
    reason: str
    """The reason for a refusal; else empty."""
    saved_s: float
    """The time that the new version saves for an input of recent traffic on average; 0 if nothing
    of it is proved."""


def judge(
    cascade: Cascade,
    networks: Sequence[ExitHead],
    tune: Scored,
    recent: Material,
    original: Material,
    served: Standing,
    accuracies: Sequence[float],
) -> Judgement:
    """Judge ``networks`` in place of the cascade's; the promise is proved on recent rows alone.

    ``tune`` proposes thresholds: rows as judged by selectors that never saw them. ``recent`` and
    ``original`` rows are held out; ``served`` is the cascade's performance on recent ones.
    ``accuracies``: those of the levels to prove, all that were trained, since the served version
    may lack some; without the first one there is no version.
    Original rows would make a proof easy and say nothing about the traffic. They must not refute
    the promise, so that the caches stay good at what they were made for. Recent traffic has to
    become faster. If it contradicts the version that is served, a version that keeps the promise
    replaces it even if it saves less.
    """
    saved = functools.partial(saving_s, cascade)
    proving, refuting = look_at(networks, recent), look_at(networks, original)
    levels: list[Level] = []
    for accuracy in accuracies:
        promise = Promise(accuracy, cascade.confidence)
        proof = calibrate_cautiously(tune, proving, promise, saved)
        broken = proof and refutation(count_cascade(refuting, proof.thresholds), promise)
        if proof is not None and not broken:
            levels.append(Level(accuracy, proof.thresholds, proof.count))
        elif not levels:
            reason = f"on original inputs {broken}" if broken else unproved(promise, len(recent))
            return Judgement((), reason, 0.0)
    after_s = saved(count_cascade(proving, levels[0].thresholds))
    ours, theirs = ({level.accuracy for level in each} for each in (levels, cascade.levels))
    if not is_better(after_s, served, has_more_levels=ours > theirs):
        text = (
            f"it saves {after_s * 1e3:.3f} ms of a recent input on average, "
            f"the version that is served {served.saved_s * 1e3:.3f} ms"
        )
        return Judgement((), text, after_s)
    return Judgement(tuple(levels), "", after_s)


def unproved(promise: Promise, rows: int) -> str:
    """Return that ``rows`` held-out recent inputs do not prove the promise."""
    return (
        f"accuracy {promise.accuracy:.2%} cannot be proved with confidence "
        f"{promise.confidence:.0%} on {rows} held-out recent inputs"
    )


def doubted(count: CascadeCount, accuracy: float) -> str:
    """Return how ``count`` shows less than ``accuracy``, however little that proves, or ''."""
    for index, one in enumerate(count.exits):
        if one.right < accuracy * one.answered:
            return f"exit {index} agrees in {one.right} of {one.answered} recent answers"
    if count.wrong_anywhere > (1 - accuracy) * count.inputs:
        return f"{count.wrong_anywhere} of {count.inputs} recent inputs are answered otherwise"
    return ""


def refutation(count: CascadeCount, promise: Promise) -> str:
    """Return how ``count`` refutes the promise, with its confidence, or ''."""
    for index, exit_count in enumerate(count.exits):
        most = upper_bound(exit_count.right, exit_count.answered, promise.confidence)
        if exit_count.answered and most < promise.accuracy:
            return f"exit {index} agrees in {exit_count.right} of {exit_count.answered} answers"
    least_wrong = lower_bound(count.wrong_anywhere, count.inputs, promise.confidence)
    if least_wrong > 1 - promise.accuracy:
        return f"{count.wrong_anywhere} of {count.inputs} would be answered otherwise"
    return ""
