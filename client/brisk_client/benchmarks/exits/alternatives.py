"""What stands beside learned caches and their promise.

What one could do instead: a smaller model, an int8 one (GATI, Fig. 6), thresholds on the softmax;
and whether audits notice an exit that has become worse.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from brisk.exits.adaptation.features import gather, look_at
from brisk.exits.base_model import BaseModel, load_graph, taps_of
from brisk.exits.cascade import Cascade, Level
from brisk.exits.data.samples import Samples
from brisk.exits.guarantee.audit import CascadeAudit
from brisk.exits.guarantee.calibration import Promise, calibrate
from brisk.exits.heads.lookup import LookUp, network_of
from brisk.exits.model_graph import read_graph
from brisk_client.benchmarks.exits.data import ExitCase
from brisk_client.benchmarks.exits.runs import Other, classes_of

CALIBRATED_ROWS = 200


def alternatives(case: ExitCase) -> dict[str, Other]:
    """By name; without ONNX Runtime, which quantises, only the smaller model."""
    found: dict[str, Other] = {}
    if case.smaller is not None:
        found["a smaller model (14 layers)"] = _ours(case.smaller())
    try:
        quantised = _quantised(case.model, case.training)
        found["int8, by ONNX Runtime"] = _theirs(quantised)
        found["float32, by ONNX Runtime"] = _theirs(case.model)
    except ImportError:
        pass
    return found


def _ours(model: Path) -> Other:
    base = load_graph(read_graph(model))
    return lambda inputs: classes_of(next(iter(base.run(inputs).values())))


def _theirs(model: Path) -> Other:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    output = session.get_outputs()[0].name
    return lambda inputs: classes_of(session.run([output], dict(inputs))[0])


def _quantised(model: Path, training: Samples) -> Path:
    """Static int8 quantisation, weights by channel, calibrated on training inputs; made once."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Rows(CalibrationDataReader):  # type: ignore[misc]  # untyped base
        def __init__(self) -> None:
            rows = range(min(CALIBRATED_ROWS, len(training)))
            self._rows = (dict(training.take(slice(row, row + 1)).inputs) for row in rows)

        def get_next(self) -> dict[str, Any] | None:
            return next(self._rows, None)

    target = model.with_name("int8.onnx")
    if not target.exists():
        prepared = model.with_name("prepared.onnx")
        logging.getLogger().setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()):
            quant_pre_process(str(model), str(prepared), skip_symbolic_shape=True)
            quantize_static(
                *(str(prepared), str(target), Rows()),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
            )
        prepared.unlink()
    return target


INJECTED = 0.1
"""Share of an exit's answers that are made wrong."""


def load_for(model: Path, cascade: Cascade) -> BaseModel:
    """The model, cut so that the values at the cascade's exits and its scores can be read."""
    graph = read_graph(model)
    points = [exit_.point for exit_ in cascade.exits]
    return load_graph(graph, 1, taps_of(points, cascade.scores, graph))


class SoftmaxLookUp(LookUp):
    """The same predictor without selector, gate and floor: its greatest probability decides."""

    def decide(
        self, logits: torch.Tensor, distances: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        score = logits.softmax(1).max(1).values
        return score, torch.ones_like(score, dtype=torch.bool)


def softmax_model(look_up: bytes) -> bytes:
    """As ``SoftmaxLookUp.decide``, of a look-up's ONNX model."""
    model = onnx.load_model_from_string(look_up)
    outputs = list(model.graph.output)
    made = onnx.utils.Extractor(model).extract_model(["hidden"], ["logits"])
    made.graph.initializer.append(helper.make_tensor("nothing", TensorProto.FLOAT, (), [0.0]))
    made.graph.node.extend(
        [
            helper.make_node("Softmax", ["logits"], ["shares"], axis=1),
            helper.make_node("ReduceMax", ["shares"], ["score"], axes=[1], keepdims=0),
            helper.make_node("GreaterOrEqual", ["score", "nothing"], ["near"]),
        ]
    )
    del made.graph.output[:]
    made.graph.output.extend(outputs)
    data: bytes = made.SerializeToString()
    return data


def softmax_cascade(base: BaseModel, cascade: Cascade, case: ExitCase) -> Cascade | None:
    """With calibrated thresholds on the softmax (GATI, Fig. 23); None where nothing is proved.

    Tuned and calibrated on the rows that the cascade itself was.
    """
    own = [network_of(exit_) for exit_ in cascade.exits]
    networks = [SoftmaxLookUp(one.predictor, one.selector, one.gate).eval() for one in own]
    exits = tuple(
        dataclasses.replace(exit_, model=softmax_model(exit_.model)) for exit_ in cascade.exits
    )
    level = cascade.levels[0]
    saved_s = [exit_.saved_s for exit_ in exits]
    burden_s = [exit_.burden_s for exit_ in exits]
    division = case.division
    tune, held_out = (
        look_at(networks, gather(base, cascade, case.training.take(rows).inputs))
        for rows in (division.tune, division.calibrate)
    )
    found = calibrate(
        tune,
        held_out,
        Promise(level.accuracy, cascade.confidence),
        lambda count: count.saving_s(saved_s, burden_s),
    )
    if found is None:
        return None
    levels = (Level(level.accuracy, found.thresholds, found.count),)
    return dataclasses.replace(cascade, exits=exits, levels=levels)


def audits_until_off(agreed: Sequence[bool], accuracy: float, most: int) -> int | None:
    """Audited answers, as they were but 10 % made wrong, until the exit is off; None: never."""
    random = np.random.default_rng(0)
    audit = CascadeAudit(accuracy)
    for number in range(1, most + 1):
        right = agreed[int(random.integers(len(agreed)))] and random.uniform() >= INJECTED
        if audit.note(0, bool(right)):
            return number
    return None
