"""Samples of cold starts: engines interleaved, each sample in a fresh process."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from brisk_bench.cold.page_cache import disk_seconds, drop_pages, files_of, read_pages
from brisk_bench.cold.zygote import ColdSample, Zygote
from brisk_bench.engines.networks import ModelFiles
from brisk_bench.engines.process import EngineUnavailableError
from brisk_bench.engines.registry import COLD
from brisk_bench.harness.sampling import in_rounds


@dataclass(slots=True)
class EngineSamples:
    """An engine's samples of one model.

    ``prepare_s``: seconds to prepare the model; None if nothing was prepared now.
    ``disk_s``: with the page cache dropped, seconds to read from the disk the files that a start
      reads, once a round.
    """

    samples: list[ColdSample] = field(default_factory=list)
    prepare_s: float | None = None
    disk_s: list[float] = field(default_factory=list)


def measure(
    files: ModelFiles,
    engines: Sequence[str],
    threads: int,
    effort: tuple[int, float],
    outputs: Path,
    *,
    dropped: bool = False,
) -> tuple[dict[str, EngineSamples], dict[str, str]]:
    """Take samples of each engine, which first prepares the model, in a process of its own.

    ``effort``: rounds, and seconds of warm inferences after each cold start. ``dropped``: the
    files leave the page cache before each sample, else they are read into it. An engine that fails
    is left out; the second result says why. First answers go to ``outputs``/ENGINE.npz.
    """
    rounds, warm_s = effort
    zygotes: dict[str, tuple[Zygote, Path | None]] = {}
    results: dict[str, EngineSamples] = {}
    failed: dict[str, str] = {}

    def sample(name: str) -> ColdSample:
        zygote, prepared = zygotes[name]
        read = files_of(prepared or files.model)
        if dropped:
            results[name].disk_s.append(disk_seconds(read))
            drop_pages(read)
        else:
            read_pages(read)
        return zygote.sample(files.model, prepared, files.inputs, warm_s, outputs / f"{name}.npz")

    with contextlib.ExitStack() as stack:
        for name in engines:
            try:
                zygote = stack.enter_context(Zygote(name, threads))
                prepared, took_s = None, None
                if COLD[name].prepare is not None:
                    prepared, took_s = zygote.prepare(files.model, files.folder)
            except EngineUnavailableError as error:
                failed[name] = str(error)
                continue
            zygotes[name], results[name] = (zygote, prepared), EngineSamples(prepare_s=took_s)
        samples, reasons = in_rounds(zygotes, rounds, sample, failures=(EngineUnavailableError,))
    for name, cold_samples in samples.items():
        results[name].samples = cold_samples
    return {name: results[name] for name in samples}, {**failed, **reasons}
