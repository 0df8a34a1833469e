"""Samples of cold starts: engines in turns, each sample in a fresh process."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from brisk_client.benchmarks.cold.engines import ENGINES
from brisk_client.benchmarks.cold.models import ModelFiles
from brisk_client.benchmarks.cold.zygote import ColdSample, ColdTask, Zygote, prepare_apart
from brisk_client.benchmarks.engines.process import EngineUnavailableError

Failed: TypeAlias = Callable[[str, str], None]
"""Takes an engine's name and why it cannot be measured."""

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Effort:
    """Rounds of all engines; behind each cold start so many inferences timed one by one, then
    seconds of warm ones."""

    rounds: int
    warm_s: float
    following: int = 3


@dataclass(slots=True)
class EngineSamples:
    """An engine's samples of one model. ``disk_s``: with the page cache dropped, seconds to read
    the files that a start reads from the disk, once a round."""

    samples: list[ColdSample]
    disk_s: list[float]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What an engine made ahead of time for a model; ``artefact`` is "" where it makes nothing.

    ``files``: what a start reads. ``took_s``: None where it was there already.
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
        engine = ENGINES[name]
        artefact, took_s = "", None
        try:
            if engine.prepares:
                artefact, took_s = prepare_apart(
                    name, files.model, files.folder, files.inputs, threads
                )
        except EngineUnavailableError as error:
            fail(name, str(error))
            continue
        read = engine.files(files.model, Path(artefact) if artefact else None)
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
        for name in prepared:
            try:
                zygotes[name] = Zygote(name, threads)
            except EngineUnavailableError as error:
                fail(name, str(error))
                continue
            stack.callback(zygotes[name].close)
            found[name] = EngineSamples([], [])
        for turn in range(effort.rounds):
            for name in random.Random(turn).sample(list(zygotes), len(zygotes)):
                ready, ours = prepared[name], found[name]
                if dropped:
                    ours.disk_s.append(disk_seconds(ready.files))
                    drop_pages(ready.files)
                else:
                    read_pages(ready.files)
                task = ColdTask(
                    engine=name,
                    model=str(files.model),
                    prepared=ready.artefact,
                    inputs=str(files.inputs),
                    threads=threads,
                    following=effort.following,
                    warm_s=effort.warm_s,
                    outputs=str(outputs / f"{name}.npz") if outputs and turn == 0 else "",
                )
                try:
                    ours.samples.append(zygotes[name].sample(task))
                except EngineUnavailableError as error:
                    fail(name, str(error))
                    del zygotes[name], found[name]
    return found


def drop_pages(files: Iterable[Path]) -> None:
    """Have the next read of these files come from the disk, as far as the kernel obliges.

    Pages that a process has mapped stay. Needs no privilege.
    """
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fdatasync(descriptor)  # dirty pages cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def read_pages(files: Iterable[Path]) -> None:
    """Read everything once, in order, in chunks of 4 MiB; the next read comes from memory."""
    buffer = bytearray(_CHUNK_BYTES)
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while os.readv(descriptor, [buffer]):
                pass
        finally:
            os.close(descriptor)


def disk_seconds(files: Sequence[Path]) -> float:
    """Seconds to read these files from the disk; they stay cached."""
    drop_pages(files)
    started_s = time.perf_counter()
    read_pages(files)
    return time.perf_counter() - started_s
