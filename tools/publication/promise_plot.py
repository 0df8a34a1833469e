"""The plot of early exits: the speed-up by promise, and how each promise is kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

from publication.drawing import Area, Axis, curve, dot, sheet, words
from publication.runs import PublishedRun, UnusableRunError

SIDE = re.compile(r"caches, (\d+(?:\.\d+)?)%")
"""The name of a side of the run whose caches keep a promise, with the promise in percent."""

_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 60, 630, 66, 290, 334


@dataclass(frozen=True, slots=True)
class _Kept:
    """One promise, with what was measured.

    ``promise``: in percent.
    ``agreement``: measured share of all answers.
    ``early_agreement``: measured share of the answers that a cache gave; None if the run lacks it.
    """

    promise: float
    speed_up: float
    agreement: float
    early_agreement: float | None


def promise_plot(run: PublishedRun) -> str:
    """Return an SVG: speed-up over the promise, at batch 1, with the agreement.

    Raises UnusableRunError if the run has fewer than two promises.
    """
    kept = sorted(_kept(run), key=lambda one: one.promise)
    if len(kept) < 2:
        raise UnusableRunError(f"{run.file}: {len(kept)} rows are of a promise, wanted are two")
    promises = [one.promise for one in kept]
    most = max(4, int(max(one.speed_up for one in kept)) + 2)  # words stand above the points
    reach = 0.08 * (promises[-1] - promises[0])
    area = Area(
        Axis(promises[0] - reach, promises[-1] + reach, _LEFT, _RIGHT),
        Axis(0, most, _BOTTOM, _TOP),
    )
    ticks = {float(value): str(value) for value in range(most + 1)}
    label = "speed-up over the whole model; early and all answers that agree with it, measured"
    parts = area.frame(promises, ticks, "promised share of early answers, %", label)
    whole = [area.at(at, 1) for at in (area.x.least, area.x.most)]
    parts.append(curve(whole, "alone"))
    points = [area.at(one.promise, one.speed_up) for one in kept]
    parts.append(curve(points, "ours"))
    for one, (x, y) in zip(kept, points, strict=True):
        parts.append(dot((x, y)))
        lines = [f"all {one.agreement:.2%}"]
        if one.early_agreement is not None:
            lines.insert(0, f"early {one.early_agreement:.2%}")
        for above, line in enumerate(reversed(lines)):
            parts.append(words((x + 8, y - 6 - 13 * above), line, "small"))
        label = f"{one.speed_up:.2f} times"
        parts.append(words((x + 8, y - 8 - 13 * len(lines)), label, "strong"))
    title = "Early exits on Fashion-MNIST: speed-up and agreement by promise"
    return sheet(title, _HEIGHT, parts)


def _kept(run: PublishedRun) -> list[_Kept]:
    return [
        _Kept(float(side[1]), row["speed_up"], row["agreement"], row.get("early_agreement"))
        for row in run.rows
        if row.get("batch") == 1 and (side := SIDE.fullmatch(str(row.get("side", ""))))
    ]
