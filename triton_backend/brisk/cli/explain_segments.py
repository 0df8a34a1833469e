"""What ``brisk explain`` says of a model that ONNX Runtime computes: its segments."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def print_segments(console: Console, file: Path) -> None:
    """Raises InvalidModelError where ONNX Runtime does not take the model,
    InvalidConfigurationError where it is not installed.
    """
    from brisk.cli.explain_text import variable_text
    from brisk.segments.library import onnxruntime
    from brisk.segments.sources import BareModel
    from brisk.segments.starting import usable_cores

    version = onnxruntime().__version__
    source = BareModel(file, usable_cores())
    source.check()
    console.print(f"computed by ONNX Runtime {version}", style="bold", markup=False)
    for kind, variables in (("input", source.plan.inputs), ("output", source.plan.outputs)):
        for variable in variables:
            console.print(f"{kind} {variable_text(variable)}", markup=False)
    for segment in source.segments:
        counts = Counter(node.op_type for node in segment.proto.graph.node).most_common()
        operators = ", ".join(f"{name} ×{count}" for name, count in counts)
        console.print(f"{segment.index:>4}  {segment.words}", markup=False)
        console.print(f"      {operators or 'no operators'}", markup=False)
        console.print(
            f"      reads {', '.join(segment.inputs) or 'nothing'}; "
            f"makes {', '.join(segment.outputs) or 'nothing'}",
            style="dim",
            markup=False,
        )
