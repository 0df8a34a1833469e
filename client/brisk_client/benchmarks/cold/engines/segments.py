"""Brisk as its runtime starts models: segments that ONNX Runtime computes, in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from brisk_client.benchmarks.cold.engines.base import (
    Arrays,
    ColdEngine,
    ColdEngineError,
    Start,
)


class BriskSegments(ColdEngine):
    """From its artefact, or from its file; then exchanged for what runs fastest."""

    def __init__(self, name: str, *, has_artefact: bool) -> None:
        self.name = name
        self.prepares = has_artefact

    def import_libraries(self) -> None:
        from brisk.runtime.ready import import_everything, import_what_files_need

        import_everything("cpu")
        import_what_files_need()

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path | None:
        if not self.prepares:
            return None
        from brisk.errors import BriskError
        from brisk.segments.prepared.form import find_prepared
        from brisk.segments.prepared.preparation import is_prepared, prepare

        try:
            return (
                find_prepared(model)
                if is_prepared(model, threads)
                else prepare(model, threads).path
            )
        except BriskError as error:
            raise ColdEngineError(str(error)) from error

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        from brisk.segments.frame import run_serially
        from brisk.segments.model.sources import BareModel
        from brisk.segments.source import Source
        from brisk.segments.starting import start_segments
        from brisk.segments.timeline import Recorder

        source: Source
        if prepared is not None:
            from brisk.segments.prepared.form import PreparedModel

            source = PreparedModel(prepared, model, threads)
        else:
            source = BareModel(model, threads, is_awaited=True)
            source.check()
        starting = start_segments(source, threads, Recorder())
        lanes = starting.start_lanes(threads)

        def infer() -> list[np.ndarray]:
            return list(run_serially(starting.program, inputs).values())

        def settle() -> None:
            starting.table.wait(60.0)
            starting.load_warm(lambda: True)
            lanes.close()

        return Start(infer(), infer, settle)
