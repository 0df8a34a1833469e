"""Arithmetic that Brisk's own kernels are slow at: low precision without AVX-512.

Told by the model's own operators and weights and the processor's instruction sets, before
anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError
from onnx import ModelProto

from brisk.errors import InvalidModelError
from brisk.graph.mapping import map_file
from brisk.graph.wire_format import MalformedMessage, detach_large_tensors

NEEDED = "avx512f"
"""A flag of ``/proc/cpuinfo``; the figures are of a processor without it."""


class Slowness(NamedTuple):
    """``times``: as long as ONNX Runtime on the same processor, as measured; ``worst`` of them."""

    kind: str
    times: str
    worst: float

    def __str__(self) -> str:
        return (
            f"{self.kind}: on a processor without AVX-512, as this one, such models took "
            f"{self.times} times as long as with ONNX Runtime"
        )


FLOAT16 = Slowness("float16 weights", "27 to 35", 35)
DYNAMIC = Slowness("dynamically quantised int8", "72", 72)
QOPERATOR = Slowness("quantised operators (QOperator form)", "4", 4)
QDQ = Slowness("quantised int8 (QDQ form)", "1.3", 1.3)

ADVISED_FROM = 2.0
"""Times ONNX Runtime's, from which on an entry is a finding."""

_DYNAMIC = frozenset(
    {
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "ConvInteger",
    }
)
_FLOAT16 = 10
"""``TensorProto.FLOAT16``."""


DETACHED_BYTES = 4096
"""Of weights, whose types alone count, larger ones are not read."""


def processor_flags() -> frozenset[str]:
    """The instruction sets of this processor; empty where they are unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    text = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(text.partition(":")[2].split())


def slow_arithmetic(file: Path, flags: frozenset[str]) -> list[Slowness]:
    """What of the ONNX file ``file`` a processor of these ``flags`` is slow at.

    External data is not read. Raises InvalidModelError where the file is no model.
    """
    if not flags or NEEDED in flags:
        return []
    try:
        rest, _ = detach_large_tensors(map_file(file), DETACHED_BYTES)
        model = ModelProto.FromString(rest)
    except OSError as error:
        raise InvalidModelError(f"{file}: cannot be read: {error.strerror}") from error
    except (MalformedMessage, DecodeError) as error:
        raise InvalidModelError(f"{file}: not an ONNX model ({error})") from error
    bodies = [model.graph, *model.functions]
    operators: set[str] = set()
    is_float16 = False
    while bodies:
        body = bodies.pop()
        operators.update(node.op_type for node in body.node)
        is_float16 = is_float16 or _computes_in_float16(body)
        for node in body.node:
            for attribute in node.attribute:
                bodies += [attribute.g] if attribute.HasField("g") else attribute.graphs
    found = {
        FLOAT16: is_float16,
        DYNAMIC: bool(operators & _DYNAMIC),
        QOPERATOR: any(name.startswith("QLinear") or name == "QGemm" for name in operators),
        QDQ: {"QuantizeLinear", "DequantizeLinear"} <= operators,
    }
    return [each for each, is_there in found.items() if is_there]


def _computes_in_float16(body: Any) -> bool:
    """Whether an operator takes weights of that type; those that are cast first do not count."""
    weights = {each.name: each for each in getattr(body, "initializer", ())}
    constants: Mapping[str, Any] = {
        node.output[0]: attribute.t
        for node in body.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    }
    halves = {
        name
        for name, tensor in {**weights, **constants}.items()
        if tensor.data_type == _FLOAT16 and len(tensor.dims) >= 2
    }
    return any(node.op_type != "Cast" and halves & set(node.input) for node in body.node)
