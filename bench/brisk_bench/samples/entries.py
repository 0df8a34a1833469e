"""The sample models, how they are built, and the requests for them.

A generated entry holds ``<version>/model.onnx`` and ``expected.npz``: the answers are those of
``onnx.reference``, which shares no code with any server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from brisk_bench.samples import digits, encoder, mlp, resnet
from brisk_bench.samples.expectations import EXPECTED, ExpectedAnswer, write_expectations


@dataclass(frozen=True, slots=True)
class SampleModel:
    """One entry: how each version is built (by version number), and one request for it."""

    name: str
    versions: Mapping[int, Callable[[], onnx.ModelProto]]
    request: Callable[[], dict[str, np.ndarray]]


def _image() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {"image": random.normal(0, 1, (1, 3, 224, 224)).astype(np.float32)}


def _digit_images() -> dict[str, np.ndarray]:
    return {"image": digits.digits_split().test_images[:4]}


def _sentences() -> dict[str, np.ndarray]:
    """Return two sequences of 24 tokens, the second padded after 17."""
    random = np.random.default_rng(11)
    mask = np.ones((2, 24), np.int64)
    mask[1, 17:] = 0
    tokens = random.integers(1000, encoder.VOCABULARY, (2, 24), dtype=np.int64)
    return {
        "input_ids": tokens * mask,
        "attention_mask": mask,
        "token_type_ids": np.zeros((2, 24), np.int64),
    }


def _features() -> dict[str, np.ndarray]:
    random = np.random.default_rng(13)
    return {"features": random.normal(0, 1, (3, mlp.WIDTHS[0])).astype(np.float32)}


_NARROW = digits.DigitsRecipe(channels=(16, 32, 64), pooled=1, epochs=3, seed=1)
_WIDE = digits.DigitsRecipe(channels=(32, 64, 64, 128, 128), pooled=2, epochs=8, seed=2)

SAMPLES: tuple[SampleModel, ...] = (
    SampleModel(
        "resnet50",
        {1: lambda: resnet.build_resnet("resnet50", (3, 4, 6, 3), 4, seed=50)},
        _image,
    ),
    SampleModel(
        "digits_cnn",
        {
            1: lambda: digits.train_digits("digits_cnn", _NARROW),
            2: lambda: digits.train_digits("digits_cnn", _WIDE),
        },
        _digit_images,
    ),
    SampleModel("encoder", {1: lambda: encoder.build_encoder("encoder", seed=6)}, _sentences),
    SampleModel("mlp", {1: lambda: mlp.build_mlp("mlp", seed=3)}, _features),
    SampleModel(
        "resnet18_ort",
        {1: lambda: resnet.build_resnet("resnet18", (2, 2, 2, 2), 1, seed=18)},
        _image,
    ),
)


def generate(sample: SampleModel, entry: Path) -> None:
    """Write the entry's models, then their right answers; that last file marks it as whole."""
    (entry / EXPECTED).unlink(missing_ok=True)
    request = sample.request()
    expectations: list[ExpectedAnswer] = []
    for version, build in sample.versions.items():
        model = build()
        path = entry / str(version) / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, path)
        expectations.append(ExpectedAnswer(version, request, _answer(model, request)))
    write_expectations(entry, expectations)


def _answer(model: onnx.ModelProto, request: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    answers = ReferenceEvaluator(model).run(None, request)
    names = [output.name for output in model.graph.output]
    return {name: np.asarray(array) for name, array in zip(names, answers, strict=True)}
