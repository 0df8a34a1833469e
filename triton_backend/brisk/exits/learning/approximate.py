"""Approximate models: whole models that answer as exits, in place of the exact model.

Such a model reads the exact model's own input. If the two best classes are clearly apart its
answer is mostly that of the exact model, which gets the other inputs. The confidence in values
that are no classes is how like those of the data they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.helper import make_node

from brisk.exits.cascade import answer_form
from brisk.exits.heads.exit_model import (
    FLOOR_OF_WHOLE,
    INPUT,
    LOGITS,
    NEAR,
    OTHER,
    OWN_INPUT,
    SCORE,
    AnswerForm,
    ExitModel,
    Shape,
)
from brisk.exits.model_graph import ModelGraph, can_be_fed, readable
from brisk.exits.scores import ScoreForm, Scores

LARGEST_BYTES = 1 << 30
"""The most bytes of a model: a larger one would be twice in a file of caches, and in memory."""

LEAST_OPERATOR_SET = 13
"""The first operator set that quantises by channel, and in which reductions that scores need read
their axes; models of earlier ones are raised to it."""

WEIGHTS_ARE_NO_INPUTS = 4
"""The first version of ONNX's format in which weights need not be among the inputs, too."""


@dataclass(frozen=True, slots=True, eq=False)
class Typical:
    """The distribution of values: ``centre`` and ``spread`` of each, float32 [values]."""

    centre: np.ndarray
    spread: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Typical:
        """Return the distribution of the data's values, [rows, values]; spreads have a minimum."""
        spread = values.std(0)
        least = 1e-3 * float(np.median(spread)) or 1e-6
        return cls(values.mean(0), np.maximum(spread, np.float32(least)))


@dataclass(frozen=True, slots=True, eq=False)
class ApproximateModel:
    """A whole model that gives ``LOGITS`` [rows, ..., classes] and ``OTHER`` outputs."""

    variant: str
    """The variant of its exits."""

    model: ModelProto
    """The ONNX model. It reads ``INPUT`` float32 [rows, *shape]; without a shape, all inputs under
    ``OWN_INPUT``."""
    shape: Shape
    form: AnswerForm

    def opened(self, exit_model: bytes, threads: int = 1) -> ExitModel:
        """Open an ONNX model that ``exit_model`` has returned. Raises DamagedFileError."""
        return ExitModel(exit_model, self.shape, self.form, threads, is_whole=True)

    def exit_model(self, floor: float, typical: Typical | None = None) -> bytes:
        """Return the model with the score of ``Judge.MARGIN``, or, if values are ``typical``, of
        ``Judge.TYPICAL``; below ``floor`` it is 0.

        The latter is 1 / (1 + the mean square of (value - centre) / spread).
        """
        model = ModelProto()
        model.CopyFrom(self.model)
        graph = model.graph
        own = ("", "ai.onnx")
        version = next(each.version for each in model.opset_import if each.domain in own)
        rank = self.form.rank
        scoring = _MARGIN if typical is None else _typical(rank, version)
        ranks = {
            info.name: len(info.type.tensor_type.shape.dim)
            for info in graph.input
            if info.type.tensor_type.elem_type == TensorProto.FLOAT
        }
        nodes = _judging(ranks, scoring)
        constants = {
            "brisk.two": np.array([2], np.int64),
            "brisk.halves": np.array([[1], [-1]], np.float32),
            "brisk.one": np.array(1, np.float32),
            "brisk.rows": np.array([-1], np.int64),
            "brisk.nothing": np.array(0, np.float32),
            FLOOR_OF_WHOLE: np.array(floor, np.float32),
            **{f"brisk.inner{each}": np.arange(1, each) for each in (rank, *ranks.values())},
        }
        if typical is not None:
            constants["brisk.centre"] = typical.centre.astype(np.float32)
            constants["brisk.spread"] = typical.spread.astype(np.float32)
        read = {name for node in nodes for name in node.input}
        graph.node.extend(nodes)
        graph.initializer.extend(
            numpy_helper.from_array(array, name)
            for name, array in constants.items()
            if name in read
        )
        graph.output.extend(
            [
                helper.make_tensor_value_info(SCORE, TensorProto.FLOAT, ["rows"]),
                helper.make_tensor_value_info(NEAR, TensorProto.BOOL, ["rows"]),
            ]
        )
        data: bytes = model.SerializeToString()
        return data


_MARGIN = (
    make_node("Softmax", [LOGITS], ["brisk.shares"], axis=1),
    make_node("TopK", ["brisk.shares", "brisk.two"], ["brisk.greatest", "brisk.places"], axis=1),
    make_node("MatMul", ["brisk.greatest", "brisk.halves"], ["brisk.column"]),
    make_node("Reshape", ["brisk.column", "brisk.rows"], ["brisk.sure"]),
)


MEAN_AXES_ARE_INPUTS = 18
"""The first operator set in which ReduceMean reads its axes."""


def _typical(rank: int, version: int) -> Sequence[NodeProto]:
    """Return the nodes from values of ``rank`` dimensions to how typical each row is."""
    axes = {"axes": [*range(1, rank)]} if version < MEAN_AXES_ARE_INPUTS else {}
    squares = ["brisk.squares"] if axes else ["brisk.squares", f"brisk.inner{rank}"]
    return (
        make_node("Sub", [LOGITS, "brisk.centre"], ["brisk.apart"]),
        make_node("Div", ["brisk.apart", "brisk.spread"], ["brisk.relative"]),
        make_node("Mul", ["brisk.relative", "brisk.relative"], ["brisk.squares"]),
        make_node("ReduceMean", squares, ["brisk.distance"], keepdims=0, **axes),
        make_node("Add", ["brisk.distance", "brisk.one"], ["brisk.farness"]),
        make_node("Reciprocal", ["brisk.farness"], ["brisk.sure"]),
    )


def _judging(ranks: Mapping[str, int], scoring: Sequence[NodeProto]) -> list[NodeProto]:
    """Return the nodes from logits to score and nearness.

    A row of inputs with NaN is not near, for quantising makes numbers of anything. ``ranks``: of
    the inputs that may have NaN.
    """
    every, nodes = "brisk.sure", [*scoring]
    for name, rank in ranks.items():
        own, total = f"brisk.{name}", name
        if rank > 1:
            total = f"{own}.sum"
            reads = [name, f"brisk.inner{rank}"]
            nodes.append(make_node("ReduceSum", reads, [total], keepdims=0))
        nodes.append(make_node("Sub", [total, total], [f"{own}.finite"]))
        nodes.append(make_node("Add", [f"{own}.finite", every], [f"{own}.every"]))
        every = f"{own}.every"
    return [
        *nodes,
        make_node("IsNaN", [every], ["brisk.is_none"]),
        make_node("Not", ["brisk.is_none"], [NEAR]),
        make_node("Less", ["brisk.sure", FLOOR_OF_WHOLE], ["brisk.is_low"]),
        make_node("Or", ["brisk.is_low", "brisk.is_none"], ["brisk.is_out"]),
        make_node("Where", ["brisk.is_out", "brisk.nothing", "brisk.sure"], [SCORE]),
    ]


def shape_of_input(graph: ModelGraph) -> Shape:
    """Return the row shape of what the exits of a model read, () for all of its inputs.

    Raises ValueError if exits cannot read them.
    """
    shape = readable(graph) or ()
    if not shape and not can_be_fed(graph):
        raise ValueError("it reads something else than tensors of numbers with rows")
    return shape


def as_approximate(
    variant: str, model: ModelProto, graph: ModelGraph, scores: Scores, inputs: Mapping[str, str]
) -> ApproximateModel:
    """Return ``model``, from the inputs of ``graph`` to its ``scores``, in the form of an exit.

    ``inputs``: the exact model's name of each of these inputs. Raises ValueError like
    ``shape_of_input``, DamagedFileError if ONNX Runtime cannot run it.
    """
    shape = shape_of_input(graph)
    names = {each: f"brisk.own.{each}" for each in (INPUT, LOGITS, SCORE, NEAR)}
    names[scores.value] = _OWN
    names.update((name, f"{OTHER}{number}") for number, name in enumerate(scores.others))
    read = {own: INPUT if shape else OWN_INPUT + name for own, name in inputs.items()}
    _rename(model, {**names, **read})
    if not graph.is_single:
        for info in model.graph.input:
            info.type.tensor_type.shape.dim[0].dim_param = "rows"
    model.graph.node.extend(_as_logits(scores))
    kept = [info for info in model.graph.output if info.name.startswith(OTHER)]
    form = answer_form(scores)
    sizes = ["rows", *[None] * (form.rank - 2), scores.classes]
    logits = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, sizes)
    del model.graph.output[:]
    model.graph.output.extend([logits, *kept])
    approximate = ApproximateModel(variant, model, shape, form)
    approximate.opened(approximate.exit_model(0.0))
    return approximate


_OWN = "brisk.scores"


def until_scores(graph: ModelGraph, scores: Scores) -> ModelProto:
    """Return the model from its inputs to the scores and other values, weights inside."""
    model = onnx.load(str(graph.path))
    read = [each.name for each in graph.needed]
    needed = [info for info in model.graph.input if info.name in read]
    del model.graph.input[:]
    model.graph.input.extend(needed)
    model.ir_version = max(model.ir_version, WEIGHTS_ARE_NO_INPUTS)
    opsets = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    if opsets[0] < LEAST_OPERATOR_SET:
        model = onnx.version_converter.convert_version(model, LEAST_OPERATOR_SET)
    if scores.value not in {info.name for info in model.graph.output}:
        model.graph.output.append(helper.make_tensor_value_info(scores.value, 1, None))
    del model.graph.value_info[:]
    model = onnx.shape_inference.infer_shapes(model)
    return onnx.utils.Extractor(model).extract_model(read, [scores.value, *scores.others])


def _as_logits(scores: Scores) -> Iterator[NodeProto]:
    """Yield the nodes from scores to logits, whose softmax is the model's distribution."""
    own = _OWN
    if scores.form is not ScoreForm.VALUES and scores.rank > 2:
        own = "brisk.flat"
        yield make_node("Flatten", [_OWN], [own], axis=1)
    operator = "Log" if scores.form is ScoreForm.PROBABILITIES else "Identity"
    yield make_node(operator, [own], [LOGITS])


def _rename(model: ModelProto, names: Mapping[str, str]) -> None:
    graph = model.graph
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    for named in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        named.name = names.get(named.name, named.name)


def memory_of(model: bytes, shape: Shape) -> int:
    """Return the memory of an exit and of an evaluation of it, in bytes."""
    return 2 * len(model) + 4 * math.prod(shape)
