"""Answers of each way to out-of-distribution inputs, and what refusing them costs.

The promise is about inputs like the data. For others nothing is proved; gates, floors and
selectors are to keep early answers away from them. Here every family of ways that was trained is
composed by itself, as the product composes all of them, and asked about noise, other data sets and
corruptions of the data's own images. A wrong early answer is one that differs from the model's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from brisk.exits.cascade import INT8, Cascade
from brisk.exits.data.samples import Samples
from brisk.exits.exploration.composition import Tried, composition_problem
from brisk.exits.exploration.selection import Chosen, decide
from brisk.exits.exploration.study import Studied
from brisk.exits.heads.exit_model import Judge
from brisk_bench.exits.data import ExitCase, read_idx
from brisk_bench.exits.promise import least_expected
from brisk_bench.exits.runs import ExitBench, Version
from brisk_bench.harness.report import Report, check_limit
from brisk_bench.samples.digits import digits_split

MOST_WRONG = 0.03
"""The most wrong early answers, as a share of all inputs of a data set that is not the model's."""

ROWS, BATCH = 400, 8

SERVED = "what is served"
"""The family of all ways that a training tries by default."""

FAMILIES: Mapping[str, Callable[[Tried], bool]] = {
    SERVED: lambda one: one.judge.is_gated or one.variant == INT8,
    "selectors behind a gate": lambda one: one.judge is Judge.SELECTOR,
    "softmax": lambda one: one.judge is Judge.SOFTMAX,
    "margin": lambda one: one.judge is Judge.MARGIN and one.variant != INT8,
    "margin behind a gate": lambda one: one.judge is Judge.GATED_MARGIN,
    "int8 in front": lambda one: one.variant == INT8,
}


def families(studied: Studied) -> dict[str, Cascade]:
    """Return by name the families that save time and prove the promise, without a benchmark."""
    cascades = {}
    for name, belongs in FAMILIES.items():
        tried = [one for one in studied.tried if belongs(one)]
        measured = studied.points, studied.cost, studied.profile, studied.settings
        problems = {mode: composition_problem(tried, *measured, mode) for mode in studied.problems}
        narrow = dataclasses.replace(studied, tried=tried, problems=problems)
        chosen = decide(problems, tried, studied.settings, least_expected) if tried else None
        if isinstance(chosen, Chosen):
            cascades[name] = narrow.of(chosen)
    return cascades


def measure_strange(
    report: Report,
    case: ExitCase,
    sides: Mapping[str, Cascade],
    bench: ExitBench,
    others: Path | None,
) -> None:
    """Add a row for each set of inputs and side, and a check for each other data set.

    The checks are of the first side, which is what is served.
    """
    served = next(iter(sides))
    versions = {name: Version(one, one.synchronous) for name, one in sides.items()}
    for name, is_other, inputs in strange_inputs(case, others):
        results = bench.measure(versions, inputs, BATCH, quick=False)
        for side in versions:
            one = results[side]
            wrong = sum(not agrees for agrees in one.agreed_early) / len(one.times_s)
            report.rows.append(
                {
                    "model": case.name,
                    "side": side,
                    "asked": name,
                    "early": one.early,
                    "wrong_early": wrong,
                    "inputs": len(one.times_s),
                }
            )
            if is_other and side == served:
                text = f"{case.name}, {name}: wrong early answers"
                report.checks.append(check_limit(text, wrong, "<=", MOST_WRONG))


def strange_inputs(case: ExitCase, others: Path | None) -> Iterator[tuple[str, bool, Samples]]:
    """Yield name, whether the inputs are of another data set or no data at all, and rows.

    ``others``: a folder of Fashion-MNIST, for models of another data set.
    """
    ((name, own),) = case.evaluation.inputs.items()
    own = own[:ROWS]
    random = np.random.default_rng(0)
    least, most = float(own.min()), float(own.max())
    shape = own.shape[1:]
    for what, rows in _other_images(case, shape, others):
        spread = least + rows[:ROWS] * (most - least)
        yield what, True, Samples({name: np.ascontiguousarray(spread, np.float32)})
    noise = random.uniform(least, most, own.shape)
    shuffled = random.permuted(own.reshape(len(own), -1), axis=1).reshape(own.shape)
    for what, rows in (("uniform noise", noise), ("shuffled pixels", shuffled)):
        yield what, True, Samples({name: rows.astype(np.float32)})
    for what, rows in corrupted(own, random):
        yield what, False, Samples({name: rows.astype(np.float32)})


def corrupted(own: np.ndarray, random: np.random.Generator) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the same images, worse and worse; they are still of the data."""
    scale, mean = float(own.std()), own.mean((2, 3), keepdims=True)
    for strength in (0.1, 0.3, 1.0):
        yield f"noise of {strength:g} σ", own + random.normal(0, strength * scale, own.shape)
    for strength in (0.6, 0.3):
        yield f"contrast of {strength:g}", mean + strength * (own - mean)
    for steps in (2, 4):
        yield f"moved by {steps}", np.roll(own, (steps, steps), (2, 3))
    blurred = own
    for _ in range(3):
        blurred = (blurred + np.roll(blurred, 1, 2) + np.roll(blurred, 1, 3)) / 3
    yield "blurred", blurred


def _other_images(
    case: ExitCase, shape: tuple[int, ...], others: Path | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield rows of 0..1 in ``shape``, of data sets that are not the model's."""
    if "digits" not in case.name:
        split = digits_split()
        images = np.concatenate([split.train_images, split.test_images]) / np.float32(16)
        yield "digits", _resized(images, shape)
    if "Fashion" not in case.name and others is not None:
        fashion = read_idx(others, "t10k")
        if fashion is not None:
            yield "Fashion-MNIST", _resized(fashion.inputs["image"], shape)


def _resized(images: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Resize the first ROWS images by nearest pixels, the first channel repeated."""
    channels, height, width = shape
    rows = np.arange(height) * images.shape[2] // height
    columns = np.arange(width) * images.shape[3] // width
    picked = images[:ROWS][:, :, rows][:, :, :, columns]
    return np.repeat(picked[:, :1], channels, 1)
