"""Models and inputs for `brisk bench exits`, divided into training and evaluation."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from brisk.exits.samples import Samples
from brisk_client.samples.digits import DigitsRecipe, digits_split, train_digits

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "cifar10"
"""Not part of the product: the CIFAR-10 images and a trained network, beside the checkout."""

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
CHEAP_VARIANTS = ("Pool(4096)", "Conv(3,1)", "Conv2(3,2)")

_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """``evaluation`` shares no row with ``training`` and ``more_to_fit``.

    ``is_deep``: at least as deep as ResNet-50, which GATI's figures are for.
    """

    name: str
    model: Path
    training: Samples
    evaluation: Samples
    more_to_fit: Samples | None
    folder: Path
    variants: tuple[str, ...]
    is_deep: bool


def digits_case(folder: Path, quick: bool) -> Case:
    """A network of 16 convolutions on scikit-learn's digits, trained here in seconds."""
    recipe = DigitsRecipe(channels=(48,) * 16, pooled=11, epochs=3 if quick else 6, seed=1)
    file = folder / "digits16.onnx"
    onnx.save(train_digits("digits16", recipe).model, file)
    split = digits_split()
    images = np.concatenate([split.train_images, split.test_images])
    labels = np.concatenate([split.train_labels, split.test_labels])
    order = np.random.default_rng(0).permutation(len(images))
    everything = Samples({"image": images[order]}, labels[order])
    kept = 300
    return Case(
        "digits16",
        file,
        everything.take(slice(kept, None)),
        everything.take(slice(0, kept)),
        None,
        folder / "digits16",
        CHEAP_VARIANTS,
        is_deep=False,
    )


def cifar_case(folder: Path, quick: bool) -> Case | None:
    """ResNet-56; None where the data is not there."""
    archive, model = SHARED / "cifar10_jpeg.tar.gz", SHARED / "resnet56.onnx"
    if not archive.exists() or not model.exists():
        return None
    tests, more = (400, 300) if quick else (1000, 1000)
    parts = _read_images(archive, {"test": tests, "train": more})
    order = np.random.default_rng(0).permutation(len(parts["test"]))
    test = parts["test"].take(order)
    kept = len(test) // 5
    return Case(
        "resnet56 on CIFAR-10",
        model,
        test.take(slice(kept, None)),
        test.take(slice(0, kept)),
        parts["train"],
        folder / "resnet56",
        CHEAP_VARIANTS,
        is_deep=True,
    )


def _read_images(archive: Path, each: dict[str, int]) -> dict[str, Samples]:
    """By part: its first ``each`` images of every class, as the network takes them."""
    from PIL import Image

    images: dict[str, list[np.ndarray]] = {part: [] for part in each}
    labels: dict[str, list[int]] = {part: [] for part in each}
    with tarfile.open(archive) as files:
        for part, name, data in _members(files):
            label = CLASSES.index(name)
            if part in each and labels[part].count(label) < each[part]:
                with Image.open(io.BytesIO(data)) as image:
                    pixels = np.asarray(image.convert("RGB"), np.float32) / 255
                images[part].append(((pixels - _MEAN) / _DEVIATION).transpose(2, 0, 1))
                labels[part].append(label)
    return {
        part: Samples({"x": np.ascontiguousarray(np.stack(rows))}, np.array(labels[part]))
        for part, rows in images.items()
    }


def _members(files: tarfile.TarFile) -> Iterator[tuple[str, str, bytes]]:
    for member in files:
        if member.isfile() and member.name.endswith(".jpg"):
            part, name, _ = member.name.split("/")[-3:]
            data = files.extractfile(member)
            assert data is not None
            yield part, name, data.read()
