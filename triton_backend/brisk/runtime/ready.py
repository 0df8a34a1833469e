"""What a runtime has ready before any model comes, so that no load pays for it."""

from __future__ import annotations


def import_everything() -> None:
    """Import what loading and running any model needs, and compute nothing.

    For the process that workers are forked from: a module imported by a worker's first load would
    cost that load 40 ms for the executor, 60 for the operators of ``onnx.reference`` which fold
    constants. The machine's fingerprint is read, too.
    """
    import torch
    from onnx import GraphProto, NodeProto
    from onnx.reference import ReferenceEvaluator

    import brisk.runtime.worker_process  # noqa: F401
    from brisk.execution.artefact import fingerprint_of
    from brisk.execution.lanes import openmp, usable_cores
    from brisk.solutions.opaque import is_mappable

    fingerprint_of(torch.device("cpu"), usable_cores())
    openmp()
    is_mappable()
    nothing = NodeProto(op_type="Identity", input=["value"], output=["copy"])
    ReferenceEvaluator(GraphProto(name="nothing", node=[nothing]), opsets={"": 1})  # its 200 files
