"""Real trained models answer as ONNX Runtime does, in FP32, at two sizes of their input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from brisk.execution.frame import run_serially
from brisk.execution.loading import load_program
from brisk.graph.reader import read_program
from brisk.solutions.values import from_numpy, to_numpy
from support.models.real_models import (
    DIRECTION_CLASSIFIER,
    SENTENCE_ENCODER,
    TEXT_DETECTOR,
    TEXT_RECOGNISER,
    VOICE_DETECTOR,
    VOICE_DETECTOR_SEQUENCE,
    ModelUnavailableError,
    RealModel,
    fetch,
)

onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime (extra bench) is the peer")

RTOL, ATOL = 1e-3, 1e-4
CPU = torch.device("cpu")
Arrays = dict[str, np.ndarray]


def images(*shape: int) -> Arrays:
    return {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}


def audio(batch: int) -> Arrays:
    """Chunks of 512 samples after 64 of context, at 16 kHz."""
    samples = np.random.default_rng(1).standard_normal((batch, 576)).astype(np.float32)
    return {"input": samples * 0.1, "state": np.zeros((2, batch, 128), np.float32)} | {
        "sr": np.array(16000, np.int64)
    }


def audio_sequence(steps: int) -> Arrays:
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": audio(steps)["input"], "h": state, "c": state}


def tokens(batch: int, length: int) -> Arrays:
    """Token numbers, the last third of the last row masked."""
    mask = np.ones((batch, length), np.int64)
    mask[-1, length * 2 // 3 :] = 0
    return {
        "input_ids": np.random.default_rng(2).integers(1, 30000, (batch, length)),
        "attention_mask": mask,
        "token_type_ids": np.zeros((batch, length), np.int64),
    }


@pytest.mark.parametrize(
    ("model", "make", "sizes"),
    [
        (TEXT_DETECTOR, images, [(1, 3, 320, 320), (1, 3, 192, 416)]),
        (TEXT_RECOGNISER, images, [(1, 3, 48, 320), (2, 3, 48, 200)]),
        (DIRECTION_CLASSIFIER, images, [(1, 3, 48, 192), (4, 3, 48, 192)]),
        (VOICE_DETECTOR, audio, [(1,), (3,)]),
        (VOICE_DETECTOR_SEQUENCE, audio_sequence, [(1,), (7,)]),
        (SENTENCE_ENCODER, tokens, [(1, 16), (3, 50)]),
    ],
    ids=lambda value: Path(value.member).stem if isinstance(value, RealModel) else "",
)
def test_real_model_agrees_with_onnx_runtime_at_two_sizes(
    model: RealModel, make: Callable[..., Arrays], sizes: list[tuple[int, ...]]
) -> None:
    try:
        path = fetch(model)
    except ModelUnavailableError as error:
        pytest.skip(str(error))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    peer = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    loaded = load_program(read_program(path), CPU)
    for size in sizes:
        inputs = make(*size)
        results = run_serially(loaded, {k: from_numpy(v, CPU) for k, v in inputs.items()})
        names = [output.name for output in peer.get_outputs()]
        for name, expected in zip(names, peer.run(names, inputs), strict=True):
            actual = to_numpy(results[name])
            np.testing.assert_allclose(actual, expected, RTOL, ATOL, err_msg=f"{name} at {size}")
    on_reference = Counter(
        node.operator
        for node, layer in zip(loaded.program.layers, loaded.layers, strict=True)
        if layer.solution.name == "reference"
    )
    assert on_reference == {}, "every layer of these models has a tuned solution"
