"""Samples of cold starts: engines in turns, each sample in a fresh process."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from brisk_client.benchmarks.cold.engines.base import ColdEngineError
from brisk_client.benchmarks.cold.machine import page_cache
from brisk_client.benchmarks.cold.machine.zygote import ColdSample, ColdTask, Zygote, prepare_apart
from brisk_client.benchmarks.cold.models import ModelFiles
from brisk_client.benchmarks.cold.registry import engine_of

Failed: TypeAlias = Callable[[str, str], None]
"""Takes an engine's name and why it cannot be measured."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Rounds of all engines; behind each cold start so many inferences timed one by one, then
    seconds of warm ones."""

    rounds: int
    warm_s: float
    following: int = 3


@dataclass(slots=True)
class EngineSamples:
    """An engine's samples of one model. ``files``: what a start reads."""

    engine: str
    files: list[Path]
    samples: list[ColdSample]
    disk_s: list[float]
    """With the page cache dropped: seconds to read ``files`` from the disk, once a round."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an engine made ahead of time for a model; ``artefact`` is "" where it makes nothing.

    ``took_s``: None where it was there already.
    """

    artefact: str
    files: list[Path]
    took_s: float | None


def prepare_all(
    files: ModelFiles, engines: Sequence[str], threads: int, fail: Failed
) -> dict[str, Prepared]:
    """Let every engine prepare the model, each in a process of its own.

    Those that cannot are left out; ``fail`` takes their name and reason.
    """
    found = {}
    for name in engines:
        artefact: str = ""
        took_s: float | None = None
        try:
            if engine_of(name).prepares:
                artefact, took_s = prepare_apart(name, files, threads)
        except ColdEngineError as error:
            fail(name, str(error))
            continue
        read = engine_of(name).files(files.model, Path(artefact) if artefact else None)
        found[name] = Prepared(artefact, read, took_s)
    return found


def measure(
    files: ModelFiles,
    prepared: Mapping[str, Prepared],
    threads: int,
    effort: Effort,
    fail: Failed,
    *,
    dropped: bool = False,
    outputs: Path | None = None,
) -> dict[str, EngineSamples]:
    """``effort.rounds`` samples of each engine, each round in an order of its own.

    Orders are drawn (the same ones in every run), since who was before whom counts: behind an
    engine that used much memory the next one's is given anew by a virtual machine's host.

    ``dropped``: the files leave the page cache before each sample, else they are read into it.
    An engine that fails is left out; ``fail`` takes its name and reason. First answers go to
    ``outputs``/ENGINE.npz.
    """
    found: dict[str, EngineSamples] = {}
    with ExitStack() as stack:
        zygotes: dict[str, Zygote] = {}
        for name, ready in prepared.items():
            try:
                zygotes[name] = stack.enter_context(Zygote(name, threads))
            except ColdEngineError as error:
                fail(name, str(error))
                continue
            found[name] = EngineSamples(name, ready.files, [], [])
        for turn in range(effort.rounds):
            for name in random.Random(turn).sample(list(zygotes), len(zygotes)):
                zygote, ours = zygotes[name], found[name]
                if dropped:
                    ours.disk_s.append(page_cache.disk_seconds(ours.files))
                    page_cache.drop(ours.files)
                else:
                    page_cache.warm(ours.files)
                task = ColdTask(
                    engine=name,
                    model=str(files.model),
                    prepared=prepared[name].artefact,
                    inputs=str(files.inputs),
                    threads=threads,
                    following=effort.following,
                    warm_s=effort.warm_s,
                    outputs=str(outputs / f"{name}.npz") if outputs and turn == 0 else "",
                )
                try:
                    ours.samples.append(zygote.sample(task))
                except ColdEngineError as error:
                    fail(name, str(error))
                    del zygotes[name], found[name]
    return found
