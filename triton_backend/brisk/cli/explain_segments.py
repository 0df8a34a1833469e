"""What ``brisk explain`` says of a model that ONNX Runtime computes: why, and its segments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def print_segments(console: Console, file: Path, reason: str) -> None:
    """Where ``BRISK_ENGINE`` is ``auto``. Raises InvalidModelError where ONNX Runtime does not
    take the model either, InvalidConfigurationError where it is not installed.
    """
    from brisk.execution.lanes import usable_cores
    from brisk.execution.segment_source import SegmentSource
    from brisk.execution.timeline import Recorder
    from brisk.segments.library import onnxruntime

    version = onnxruntime().__version__
    source = SegmentSource(file, usable_cores(), Recorder())
    source.check()
    console.print(f"computed by ONNX Runtime {version}: {reason}", style="bold", markup=False)
    for segment in source.segments:
        console.print(f"{segment.index:>4}  {segment.words}", markup=False)
        console.print(
            f"      reads {', '.join(segment.inputs) or 'nothing'}; "
            f"makes {', '.join(segment.outputs) or 'nothing'}",
            style="dim",
            markup=False,
        )
