"""The file in a generated entry with requests and their right answers; comparing answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed_version
from pathlib import Path

import numpy as np

EXPECTED = "expected.npz"
RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-3, 1e-4
_DIGEST = "digest"


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    """A request to one version of a model, and the right answer."""

    version: int
    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


def sources_digest() -> str:
    """Return a digest that changes with any file of this package and the versions of onnx and
    numpy."""
    versions = [installed_version(name) for name in ("onnx", "numpy")]
    digest = hashlib.sha256(" ".join(versions).encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def is_current(entry: Path) -> bool:
    """True when the entry's generated files are there and made by the present code."""
    file = entry / EXPECTED
    if not file.is_file():
        return False
    with np.load(file) as stored:
        digest = str(stored[_DIGEST])
    return digest == sources_digest() and all(
        (entry / str(expectation.version) / "model.onnx").is_file()
        for expectation in read_expectations(entry)
    )


def write_expectations(entry: Path, expectations: Sequence[ExpectedAnswer]) -> None:
    arrays: dict[str, np.ndarray] = {_DIGEST: np.array(sources_digest())}
    for each in expectations:
        arrays |= {f"{each.version}/input/{name}": array for name, array in each.inputs.items()}
        arrays |= {f"{each.version}/output/{name}": array for name, array in each.outputs.items()}
    with (entry / EXPECTED).open("wb") as file:
        np.savez(file, **arrays)


def read_expectations(entry: Path) -> list[ExpectedAnswer]:
    """Return what ``write_expectations`` stored, in order of version. Raises FileNotFoundError."""
    with np.load(entry / EXPECTED) as stored:
        arrays = {tuple(key.split("/", 2)): stored[key] for key in stored.files if key != _DIGEST}

    def side(version: str, part: str) -> dict[str, np.ndarray]:
        return {key[2]: array for key, array in arrays.items() if key[:2] == (version, part)}

    versions = sorted({key[0] for key in arrays}, key=int)
    return [
        ExpectedAnswer(int(version), side(version, "input"), side(version, "output"))
        for version in versions
    ]


def mismatch(outputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> str:
    """Return why ``outputs`` are not the expected ones; empty if they are, within tolerance."""
    if outputs.keys() != expected.keys():
        return f"outputs are {sorted(outputs)}, expected {sorted(expected)}"
    for name, right in expected.items():
        actual = outputs[name]
        if actual.shape != right.shape or actual.dtype != right.dtype:
            return (
                f"output '{name}' is {actual.dtype}{list(actual.shape)}, "
                f"expected {right.dtype}{list(right.shape)}"
            )
        if not np.allclose(actual, right, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE):
            largest = np.abs(actual.astype(np.float64) - right).max()
            return f"output '{name}' is off by up to {largest:.2g}"
    return ""
