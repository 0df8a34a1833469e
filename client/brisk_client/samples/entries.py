"""Which sample models there are, what they are asked, and what they should answer.

A generated entry holds ``<version>/model.onnx`` and ``expected.npz``: per version the inputs
and the outputs that ``onnx.reference``, which shares no code with any server, gives for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from brisk_client.samples import digits, encoder, mlp, resnet

EXPECTED = "expected.npz"
ACCURACY = "accuracy.json"
_DIGEST = "digest"


@dataclass(frozen=True, slots=True)
class BuiltVersion:
    """A model, and its accuracy on held-out data where it was trained."""

    model: onnx.ModelProto
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One entry: how each version is built (by version number), and one request for it."""

    name: str
    versions: Mapping[int, Callable[[], BuiltVersion]]
    request: Callable[[], dict[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Expectation:
    """A request to one version of a model, and the right answer."""

    version: int
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]


def _image() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {"image": random.normal(0, 1, (1, 3, 224, 224)).astype(np.float32)}


def _digit_images() -> dict[str, np.ndarray]:
    return {"image": digits.digits_split().test_images[:4]}


def _sentence() -> dict[str, np.ndarray]:
    """Two sequences of 24 tokens, the second padded after 17."""
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


def _trained_digits(recipe: digits.DigitsRecipe) -> BuiltVersion:
    trained = digits.train_digits("digits_cnn", recipe)
    return BuiltVersion(trained.model, trained.accuracy)


_NARROW = digits.DigitsRecipe(channels=(16, 32, 64), pooled=1, epochs=3, seed=1)
_WIDE = digits.DigitsRecipe(channels=(32, 64, 64, 128, 128), pooled=2, epochs=8, seed=2)

SAMPLES: tuple[Sample, ...] = (
    Sample(
        "resnet50",
        {1: lambda: BuiltVersion(resnet.build_resnet("resnet50", (3, 4, 6, 3), 4, seed=50))},
        _image,
    ),
    Sample(
        "digits_cnn",
        {1: lambda: _trained_digits(_NARROW), 2: lambda: _trained_digits(_WIDE)},
        _digit_images,
    ),
    Sample(
        "encoder",
        {1: lambda: BuiltVersion(encoder.build_encoder("encoder", seed=6))},
        _sentence,
    ),
    Sample("mlp", {1: lambda: BuiltVersion(mlp.build_mlp("mlp", seed=3))}, _features),
    Sample(
        "resnet18_ort",
        {1: lambda: BuiltVersion(resnet.build_resnet("resnet18", (2, 2, 2, 2), 1, seed=18))},
        _image,
    ),
)


def sources_digest() -> str:
    """Changes when any file of this package or the onnx or numpy version does."""
    digest = hashlib.sha256(f"{onnx.__version__} {np.__version__}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def is_current(sample: Sample, entry: Path) -> bool:
    """True when the entry's generated files are there and of this code."""
    expected = entry / EXPECTED
    if not expected.is_file() or not all(
        (entry / str(version) / "model.onnx").is_file() for version in sample.versions
    ):
        return False
    with np.load(expected) as stored:
        return bool(str(stored[_DIGEST]) == sources_digest())


def generate(sample: Sample, entry: Path) -> None:
    """Write the entry's models, then what they should answer; the last file says it is whole."""
    (entry / EXPECTED).unlink(missing_ok=True)
    request = sample.request()
    arrays: dict[str, np.ndarray] = {_DIGEST: np.array(sources_digest())}
    accuracies: dict[str, float] = {}
    for version, build in sample.versions.items():
        built = build()
        path = entry / str(version) / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(built.model.SerializeToString())
        if built.accuracy is not None:
            accuracies[str(version)] = built.accuracy
        answers = ReferenceEvaluator(built.model).run(None, request)
        names = [output.name for output in built.model.graph.output]
        arrays |= {f"{version}/input/{name}": array for name, array in request.items()}
        arrays |= {
            f"{version}/output/{name}": np.asarray(array)
            for name, array in zip(names, answers, strict=True)
        }
    if accuracies:
        (entry / ACCURACY).write_text(json.dumps(accuracies) + "\n")
    with (entry / EXPECTED).open("wb") as file:
        np.savez(file, **arrays)


def read_expectations(entry: Path) -> list[Expectation]:
    """What ``generate`` stored, in order of version. Raises FileNotFoundError without it."""
    with np.load(entry / EXPECTED) as stored:
        keys = [key.split("/", 2) for key in stored.files if key != _DIGEST]
        return [
            Expectation(
                version,
                _arrays(stored, keys, version, "input"),
                _arrays(stored, keys, version, "output"),
            )
            for version in sorted({int(key[0]) for key in keys})
        ]


def _arrays(
    stored: Mapping[str, np.ndarray], keys: list[list[str]], version: int, side: str
) -> dict[str, np.ndarray]:
    return {
        name: stored[f"{number}/{part}/{name}"]
        for number, part, name in keys
        if int(number) == version and part == side
    }
