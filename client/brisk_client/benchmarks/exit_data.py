"""Models and inputs for `brisk bench exits`, divided into training and evaluation."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import io
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from brisk.exits.samples import Division, Samples, divide
from brisk_client.samples.bottleneck import BottleneckRecipe, train_bottleneck
from brisk_client.samples.digits import digits_split

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "cifar10"
"""Not part of the product: the CIFAR-10 images and a trained network, beside the checkout."""

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts it."""

QUICK_VARIANTS = ("Pool(4096)", "Conv2(3,2)")
CHEAP_VARIANTS = ("Pool(4096)", "Conv(3,1)", "Conv2(3,2)")
NARROW_VARIANTS = ("Pool(4096)", "Conv3(3,2)")
"""For a ResNet-56, whose maps have 16 to 64 channels."""


_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A network at least as deep as ResNet-50, which GATI's figures are for.

    ``evaluation`` shares no row with ``training`` and ``more_to_fit``.
    """

    name: str
    model: Path
    training: Samples
    evaluation: Samples
    more_to_fit: Samples | None
    folder: Path
    variants: tuple[str, ...]
    smaller: Callable[[], Path] | None = None
    """Trains, or finds, a model of the same data with a third of the layers."""
    zipf: tuple[float, ...] = ()
    """Skews of the streams that are drawn from it (GATI, 7.2.2): its images can be moved."""
    is_of_colour: bool = False
    """Its inputs are 3 x 32 x 32 pixels, which frames of a video can be brought to."""

    @property
    def division(self) -> Division:
        """Of ``training``, as exploration divides it."""
        other_rows = 0 if self.more_to_fit is None else len(self.more_to_fit)
        return divide(len(self.training), 0, other_rows)


SMALLER_BLOCKS = (1, 1, 1, 1)
ALPHAS = (1.5, 3.0)


def digits_case(quick: bool) -> Case:
    """A ResNet-50 of a quarter of the original's size on scikit-learn's digits at 32x32 pixels.

    Trained here, a minute or two, and kept in the cache directory.
    """
    split = digits_split()
    images = _enlarged(np.concatenate([split.train_images, split.test_images]) / np.float32(16))
    labels = np.concatenate([split.train_labels, split.test_labels])
    recipe = BottleneckRecipe(width=32, epochs=8, batch_rows=64)
    trained = len(split.train_labels)
    model = kept_network("resnet50-digits", recipe, images[:trained], labels[:trained])
    smaller = functools.partial(
        kept_network,
        "resnet14-digits",
        dataclasses.replace(recipe, blocks=SMALLER_BLOCKS),
        images[:trained],
        labels[:trained],
    )
    order = np.random.default_rng(0).permutation(len(images))
    case = _case("resnet50 on digits", model, images[order], labels[order], 400, quick)
    return dataclasses.replace(case, smaller=smaller, zipf=ALPHAS)


def fashion_case(folder: Path, quick: bool) -> Case | None:
    """The same network on Fashion-MNIST, caches trained on its test images; None without them.

    ``folder`` as Debian's package dataset-fashion-mnist has it.
    """
    parts = {part: _read_idx(folder, part) for part in ("train", "t10k")}
    if any(part is None for part in parts.values()):
        return None
    images, labels = parts["train"] or _NO_IMAGES
    recipe = BottleneckRecipe(width=32, epochs=3, batch_rows=64, learning_rate=0.05, mirrored=True)
    model = kept_network("resnet50-fashion", recipe, images[:FITTED], labels[:FITTED])
    images, labels = parts["t10k"] or _NO_IMAGES
    return _case("resnet50 on Fashion-MNIST", model, images, labels, 1000, quick)


FITTED = 20000
"""Images of Fashion-MNIST that its network is trained on: some minutes."""

_NO_IMAGES = (np.empty(0, np.float32), np.empty(0, np.int64))


def _case(
    name: str, model: Path, images: np.ndarray, labels: np.ndarray, kept: int, quick: bool
) -> Case:
    """``kept`` rows evaluate, the rest trains the caches."""
    samples = Samples({"image": images}, labels)
    return Case(
        name,
        model,
        samples.take(slice(kept, 6000 if quick else None)),
        samples.take(slice(0, kept)),
        None,
        model.parent / f"caches{'-quick' if quick else ''}",
        QUICK_VARIANTS if quick else CHEAP_VARIANTS,
    )


def kept_network(
    name: str, recipe: BottleneckRecipe, images: np.ndarray, labels: np.ndarray
) -> Path:
    """The trained network's file, from the cache directory or made now."""
    digest = hashlib.sha256(repr((name, recipe, images.shape)).encode()).hexdigest()[:16]
    file = _cache_folder() / f"{name}-{digest}" / "model.onnx"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        onnx.save(train_bottleneck(name, recipe, images, labels), unfinished)
        unfinished.replace(file)
    return file


def _enlarged(images: np.ndarray) -> np.ndarray:
    """Each pixel four times as wide and high."""
    return np.ascontiguousarray(images.repeat(4, 2).repeat(4, 3), np.float32)


def _read_idx(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Images float32 [count, 1, 28, 28] of 0..1 and labels int64; None where a file is missing."""
    images, labels = (
        folder / f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")
    )
    if not (images.exists() and labels.exists()):
        return None
    pixels = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16)
    classes = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
    scaled = pixels.reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)
    return scaled, classes.astype(np.int64)


def cifar_case(quick: bool) -> Case | None:
    """ResNet-56; None where the data is not there.

    Its training images fit predictors: with 20,000 of them a Conv2 of 64 channels behind half of
    the model hits 33 % at 97 % agreement, with 50,000 41 %. Test images do all the rest.
    """
    archive, model = SHARED / "cifar10_jpeg.tar.gz", SHARED / "resnet56.onnx"
    if not archive.exists() or not model.exists():
        return None
    parts = _read_images(archive, {"test": 1000, "train": 5000})
    order = np.random.default_rng(0).permutation(len(parts["test"]))
    test = parts["test"].take(order)
    kept = len(test) // 5
    return Case(
        "resnet56 on CIFAR-10",
        model,
        test.take(slice(kept, None)),
        test.take(slice(0, kept)),
        parts["train"],
        _cache_folder() / f"resnet56-caches{'-quick' if quick else ''}",
        NARROW_VARIANTS if quick else CHEAP_VARIANTS,
        is_of_colour=True,
    )


def _cache_folder() -> Path:
    root = Path(os.environ.get("BRISK_CACHE_DIR") or Path.home() / ".cache" / "brisk")
    return root / "bench-exits"


def _read_images(archive: Path, each: dict[str, int]) -> dict[str, Samples]:
    """By part: its first ``each`` images of every class, as the network takes them."""
    from PIL import Image

    images: dict[str, list[np.ndarray]] = {part: [] for part in each}
    labels: dict[str, list[int]] = {part: [] for part in each}
    counts: Counter[tuple[str, int]] = Counter()
    with tarfile.open(archive) as files:
        for part, name, data in _members(files):
            label = CLASSES.index(name)
            if counts[part, label] < each.get(part, 0):
                with Image.open(io.BytesIO(data)) as image:
                    images[part].append(as_input(np.asarray(image.convert("RGB"))))
                labels[part].append(label)
                counts[part, label] += 1
    return {
        part: Samples({"x": np.ascontiguousarray(np.stack(rows))}, np.array(labels[part]))
        for part, rows in images.items()
    }


def as_input(pixels: np.ndarray) -> np.ndarray:
    """Pixels [..., height, width, 3] of 0..255 as float32 [..., 3, height, width]."""
    scaled = (np.asarray(pixels, np.float32) / 255 - _MEAN) / _DEVIATION
    return np.moveaxis(scaled, -1, -3)


def _members(files: tarfile.TarFile) -> Iterator[tuple[str, str, bytes]]:
    for member in files:
        if member.isfile() and member.name.endswith(".jpg"):
            part, name, _ = member.name.split("/")[-3:]
            data = files.extractfile(member)
            assert data is not None
            yield part, name, data.read()
