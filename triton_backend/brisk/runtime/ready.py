"""What a runtime has ready before any model comes, so that no load pays for it."""

from __future__ import annotations

from brisk.segments.engine import Engine


def import_everything(device: str, engine: Engine) -> None:
    """Import what loading and running models needs, and compute nothing.

    For the process that workers are forked from. torch comes only where it computes every model:
    on a GPU, or by a deployment's wish; elsewhere a worker imports it with the first model that
    needs it.
    """
    import brisk.runtime.worker_process

    if device != "cpu" or engine is Engine.BRISK:
        _import_torch()
    if engine is not Engine.BRISK:
        import brisk.runtime.segment_session  # noqa: F401
        from brisk.segments.library import onnxruntime

        onnxruntime()


def _import_torch() -> None:
    """A module imported by a worker's first load would cost that load 40 ms for the executor, 60
    for the operators of ``onnx.reference`` which fold constants.
    """
    import torch
    from onnx import GraphProto, NodeProto
    from onnx.reference import ReferenceEvaluator

    import brisk.runtime.torch_session  # noqa: F401
    from brisk.execution.artefact import fingerprint_of
    from brisk.execution.lanes import openmp
    from brisk.segments.starting import usable_cores
    from brisk.solutions.catalogue import default_catalogue
    from brisk.solutions.opaque import is_mappable

    fingerprint_of(torch.device("cpu"), usable_cores())
    openmp()
    is_mappable()
    default_catalogue()
    nothing = NodeProto(op_type="Identity", input=["value"], output=["copy"])
    ReferenceEvaluator(GraphProto(name="nothing", node=[nothing]), opsets={"": 1})  # its 200 files
