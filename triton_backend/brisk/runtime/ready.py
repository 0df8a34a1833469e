"""What a runtime has ready before any model comes, so that no load pays for it."""

from __future__ import annotations

from brisk.lean_numpy import on_demand


def import_everything(device: str) -> None:
    """Import what loading and running models needs, and compute nothing.

    For the process that workers are forked from. torch comes only where it computes: on a GPU. If
    it is not installed, that is for the worker to tell those who ask.
    """
    with on_demand():
        import numpy  # noqa: F401

    import brisk.runtime.worker_main

    if device != "cpu":
        try:
            _import_torch()
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
        return
    import brisk.runtime.models.segment_session  # noqa: F401
    from brisk.segments.session import onnxruntime

    onnxruntime()


def import_what_files_need() -> None:
    """What reading a model's own file needs besides, ``onnx`` above all: 60 ms.

    A start from a prepared form does without; a worker imports it when it has a calm moment.
    """
    import onnx

    import brisk.segments.model.sources  # noqa: F401

    onnx.defs.has("Identity")  # registers all operators: 10 ms of the first model


def _import_torch() -> None:
    """A module imported by a worker's first load would cost that load 40 ms for the executor, 60
    for the operators of ``onnx.reference`` which fold constants.
    """
    from onnx import GraphProto, NodeProto
    from onnx.reference import ReferenceEvaluator

    import brisk.runtime.models.torch_session  # noqa: F401
    from brisk.solutions.catalogue import default_catalogue

    default_catalogue()
    nothing = NodeProto(op_type="Identity", input=["value"], output=["copy"])
    ReferenceEvaluator(GraphProto(name="nothing", node=[nothing]), opsets={"": 1})  # its 200 files
