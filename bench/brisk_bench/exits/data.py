"""Models and inputs for `brisk bench exits`.

Nothing that is measured was learned from or tuned on: the images that trained a network, those
that train its caches, those that evaluate them and those that streams are made of share no source
(``brisk.exits.sources``), near duplicates among them.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import tarfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from brisk.exits.cascade import INT8
from brisk.exits.data.samples import Division, Samples, divide
from brisk.exits.exploration import Exploration, ExplorationSettings, explore
from brisk.exits.heads.predictors import CATALOGUE
from brisk.exits.sources import Sources
from brisk_bench.samples.bottleneck import BottleneckRecipe, train_bottleneck
from brisk_bench.samples.digits import digits_split

ACCURACY = 0.97
"""The agreement that caches promise, unless a stricter promise is meant."""

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "cifar10"
"""The folder of the CIFAR-10 images and a trained network, which are not part of the product."""

CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
FASHION = Path("/usr/share/datasets/fashion-mnist")
"""The folder where Debian's package dataset-fashion-mnist puts Fashion-MNIST."""

ALL_VARIANTS = (*(variant.name for variant in CATALOGUE), INT8)
QUICK_VARIANTS = ("Pool(4096)", "Conv2(3,2)", INT8)
NARROW_VARIANTS = ("Pool(4096)", "Conv3(3,2)", INT8)
"""Variants of a quick run for a ResNet-56, whose maps have 16 to 64 channels."""


_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
_DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class ExitCase:
    """A network at least as deep as ResNet-50, which GATI's figures are for, and its data.

    ``training`` and ``more_to_fit`` make the caches. The network was trained on none of
    ``training``, ``evaluation``, ``streamed`` and ``pool``, and no two of these, nor
    ``more_to_fit`` and one of them but ``training``, share a source. ``pool``: more rows to test
    the promise on, in addition to the evaluation and the rows that tune and prove.
    """

    name: str
    model: Path
    training: Samples
    evaluation: Samples
    more_to_fit: Samples | None
    folder: Path
    variants: tuple[str, ...]
    smaller: Callable[[], Path] | None = None
    """Returns a model of the same data with a third of the layers, trained unless it was kept."""
    streamed: Samples | None = None
    """Images of Zipf streams, with labels; they can be moved. None if there are too few for an
    adaptation to prove anything with images that it did not learn."""
    pool: Samples | None = None
    is_of_colour: bool = False
    """Whether its inputs are 3 x 32 x 32 pixels, which frames of a video can be converted to."""

    @property
    def division(self) -> Division:
        """The division of ``training`` that exploration uses."""
        return divide(self.training, 0, self.more_to_fit)

    def explore(self, settings: ExplorationSettings, subfolder: str = "") -> Exploration:
        """Explore as `brisk caches train` does; an earlier exploration is continued."""
        folder = self.folder / subfolder
        folder.mkdir(parents=True, exist_ok=True)
        return explore(self.model, self.training, folder, settings, self.more_to_fit)


DIGITS_OF_NETWORK, DIGITS_OF_CACHES = 750, 700
"""The division of 1,797 digits. The network's also fit predictors, as many as the caches' do, so
that more of these prove."""

EVALUATED, STREAMED, POOL = 1100, 8000, 10_000
"""Numbers of Fashion-MNIST's images, each used for nothing else."""


def digits_case(quick: bool) -> ExitCase:
    """Return a ResNet-50 of a quarter of its size on scikit-learn's digits at 32x32 pixels.

    It is trained here, in a minute or two, and kept in the cache directory.
    """
    split = digits_split()
    images = np.concatenate([split.train_images, split.test_images]) / np.float32(16)
    images = np.ascontiguousarray(images.repeat(4, 2).repeat(4, 3), np.float32)
    labels = np.concatenate([split.train_labels, split.test_labels])
    every = Samples({"image": images}, labels)
    order = np.random.default_rng(0).permutation(len(images))
    bounds = (DIGITS_OF_NETWORK, DIGITS_OF_NETWORK + DIGITS_OF_CACHES)
    parts = [every.take(rows) for rows in np.split(order, bounds)]
    network, caches, evaluation = unlike(parts)
    recipe = BottleneckRecipe(width=32, epochs=14, batch_rows=64)
    model = kept_network("resnet50-digits", recipe, network)
    smaller = dataclasses.replace(recipe, blocks=(1, 1, 1, 1))
    return ExitCase(
        "resnet50 on digits",
        model,
        caches,
        evaluation,
        network,
        caches_folder(model, caches, network),
        QUICK_VARIANTS if quick else ALL_VARIANTS,
        smaller=lambda: kept_network("resnet14-digits", smaller, network),
    )


def fashion_case(folder: Path, quick: bool) -> ExitCase | None:
    """Return that network on Fashion-MNIST, caches trained on test images; None without data.

    ``folder`` as Debian's package dataset-fashion-mnist has it. Training images that did not train
    the network make streams, and the pool that the promise is tested on.
    """
    train, test = (read_idx(folder, part) for part in ("train", "t10k"))
    if train is None or test is None:
        return None
    behind = FITTED + STREAMED
    network, caches, evaluation, streamed, pool = unlike(
        [
            train.take(slice(0, FITTED)),
            test.take(slice(EVALUATED, EVALUATED + 5000 if quick else None)),
            test.take(slice(0, EVALUATED)),
            train.take(slice(FITTED, behind)),
            train.take(slice(behind, behind + POOL)),
        ]
    )
    recipe = BottleneckRecipe(width=32, epochs=3, batch_rows=64, learning_rate=0.05, mirrored=True)
    model = kept_network("resnet50-fashion", recipe, network)
    return ExitCase(
        "resnet50 on Fashion-MNIST",
        model,
        caches,
        evaluation,
        None,
        caches_folder(model, caches),
        QUICK_VARIANTS if quick else ALL_VARIANTS,
        streamed=streamed,
        pool=pool,
    )


FITTED = 20000
"""Images of Fashion-MNIST that its network is trained on, which takes some minutes."""


def unlike(parts: Sequence[Samples]) -> list[Samples]:
    """Return the parts without rows whose source an earlier row of any part has.

    The first part stays whole.
    """
    all_sources, next_source, unique_parts = Sources(), 0, []
    for place, part in enumerate(parts):
        sources = all_sources.of(part.inputs)
        rows = np.arange(len(part))
        if place:
            _, firsts = np.unique(sources, return_index=True)
            rows = np.sort(firsts[sources[firsts] >= next_source])
        next_source = max(next_source, int(sources.max(initial=-1)) + 1)
        unique_parts.append(part.take(rows))
    return unique_parts


def caches_folder(model: Path, *training: Samples) -> Path:
    """Return a folder next to the model, of these data only, since its contents are reused."""
    return model.parent / f"caches-{_digest(*training)}"


def kept_network(name: str, recipe: BottleneckRecipe, samples: Samples) -> Path:
    """Return the trained network's file, from the cache directory or made now."""
    digest = hashlib.sha256(repr((name, recipe, _digest(samples))).encode()).hexdigest()[:16]
    file = kept_folder("bench-exits") / f"{name}-{digest}" / "model.onnx"
    if not file.exists():
        assert samples.labels is not None, "networks are trained on labelled images"
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".unfinished")
        images = samples.inputs["image"]
        onnx.save(train_bottleneck(name, recipe, images, samples.labels), unfinished)
        unfinished.replace(file)
    return file


def _digest(*parts: Samples) -> str:
    digest = hashlib.sha256()
    for part in parts:
        for array in part.inputs.values():
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def read_idx(folder: Path, part: str) -> Samples | None:
    """Return images float32 [count, 1, 28, 28] of 0..1, labels int64; None without the files."""
    images, labels = (
        folder / f"{part}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")
    )
    if not (images.exists() and labels.exists()):
        return None
    pixels = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16)
    classes = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
    scaled = pixels.reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)
    return Samples({"image": scaled}, classes.astype(np.int64))


def cifar_case(quick: bool) -> ExitCase | None:
    """Return ResNet-56 on CIFAR-10; None if the data is missing.

    Its training images fit predictors: with 20,000 of them a Conv2 of 64 channels behind half of
    the model hits 33 % at 97 % agreement, with 50,000 41 %. Test images do all the rest.
    """
    archive, model = SHARED / "cifar10_jpeg.tar.gz", SHARED / "resnet56.onnx"
    if not archive.exists() or not model.exists():
        return None
    parts = _read_images(archive)
    order = np.random.default_rng(0).permutation(len(parts["test"]))
    test = parts["test"].take(order)
    fifth = len(test) // 5
    fitted, evaluation, caches = unlike(
        [parts["train"], test.take(slice(0, fifth)), test.take(slice(fifth, None))]
    )
    return ExitCase(
        "resnet56 on CIFAR-10",
        model,
        caches,
        evaluation,
        fitted,
        kept_folder("bench-exits") / f"resnet56-caches-{_digest(caches, fitted)}",
        NARROW_VARIANTS if quick else ALL_VARIANTS,
        is_of_colour=True,
    )


def kept_folder(name: str) -> Path:
    """Return the folder where a benchmark keeps what it has trained."""
    root = Path(os.environ.get("BRISK_CACHE_DIR") or Path.home() / ".cache" / "brisk")
    return root / name


def _read_images(archive: Path) -> dict[str, Samples]:
    """Return the images of each part, as the network takes them."""
    from PIL import Image

    images: dict[str, list[np.ndarray]] = defaultdict(list)
    labels: dict[str, list[int]] = defaultdict(list)
    with tarfile.open(archive) as files:
        for member in files:
            if member.isfile() and member.name.endswith(".jpg"):
                part, name, _ = member.name.split("/")[-3:]
                data = files.extractfile(member)
                assert data is not None, "it is a file"
                with Image.open(data) as image:
                    images[part].append(as_input(np.asarray(image.convert("RGB"))))
                labels[part].append(CLASSES.index(name))
    return {
        part: Samples({"x": np.ascontiguousarray(np.stack(rows))}, np.array(labels[part]))
        for part, rows in images.items()
    }


def as_input(pixels: np.ndarray) -> np.ndarray:
    """Return pixels [..., height, width, 3] of 0..255 as float32 [..., 3, height, width]."""
    scaled = (np.asarray(pixels, np.float32) / 255 - _MEAN) / _DEVIATION
    return np.moveaxis(scaled, -1, -3)
