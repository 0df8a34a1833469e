"""Pictures for `brisk bench pipeline`: a digit or a drawn shape, somewhere, in noise.

A request is a frame of several such crops, as a traffic camera's detector cuts them out; digits
stand for one kind of object, shapes for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from scipy import ndimage

from brisk_bench.samples.digits import digits_split

SIDE = 32
DIGITS = 10
SHAPES = ("ring", "square", "triangle", "cross", "corner", "bars")
NOISE = 0.3
"""Standard deviation of the noise; strokes are 0.5 to 1 bright."""


@dataclass(frozen=True, slots=True)
class Scenes:
    """Pictures with their classes.

    ``images``: float32 [count, 1, 32, 32].
    ``kinds``: 0 for a digit, 1 for a shape.
    ``labels``: 0 to 9 for digits, 10 and up for shapes.
    """

    images: np.ndarray
    kinds: np.ndarray
    labels: np.ndarray


class ScenePart(Enum):
    """The digits that train networks, that say how accurate they are, and that requests show.

    No picture is in two parts.
    """

    TRAINED = "trained"
    VALIDATED = "validated"
    MEASURED = "measured"


def digits_of(part: ScenePart) -> tuple[np.ndarray, np.ndarray]:
    """Return images float32 [count, 1, 8, 8] of 0..16, and labels int64 [count]."""
    split = digits_split()
    if part is ScenePart.TRAINED:
        return split.train_images, split.train_labels
    half = slice(None, None, 2) if part is ScenePart.VALIDATED else slice(1, None, 2)
    return split.test_images[half], split.test_labels[half]


def make_scenes(count: int, seed: int, part: ScenePart) -> Scenes:
    """Make scenes, half digits of ``part``, half shapes, mixed; shapes are drawn anew."""
    random = np.random.default_rng(seed)
    digits, labels = digits_of(part)
    kinds = random.integers(0, 2, count)
    images = random.normal(0, NOISE, (count, 1, SIDE, SIDE)).astype(np.float32)
    classes = np.empty(count, np.int64)
    for index in range(count):
        if kinds[index]:
            which = int(random.integers(len(SHAPES)))
            stamp, classes[index] = draw(SHAPES[which], random), DIGITS + which
        else:
            which = int(random.integers(len(digits)))
            stamp, classes[index] = _digit(digits[which, 0], random), int(labels[which])
        height, width = stamp.shape
        top, left = random.integers(0, SIDE - height + 1), random.integers(0, SIDE - width + 1)
        brightness = random.uniform(0.5, 1.0)
        images[index, 0, top : top + height, left : left + width] += brightness * stamp
    return Scenes(images, kinds.astype(np.int64), classes)


def _digit(pixels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return ndimage.zoom(pixels / 16, random.uniform(1.8, 2.8), order=1)


def draw(shape: str, random: np.random.Generator) -> np.ndarray:
    """Draw a shape in strokes of 1 on 0, 14 to 22 pixels wide."""
    side = int(random.integers(14, 23))
    rows, columns = np.mgrid[:side, :side]
    middle, thick = (side - 1) / 2, 2
    match shape:
        case "ring":
            away = np.hypot(rows - middle, columns - middle)
            inked = np.abs(away - middle + 1) < thick / 2 + 0.5
        case "square":
            inked = np.minimum.reduce([rows, columns, side - 1 - rows, side - 1 - columns]) < thick
        case "triangle":
            edge = np.abs(columns - middle) - rows / 2
            inked = (np.abs(edge) < thick / 2 + 0.3) | (rows >= side - thick)
        case "cross":
            inked = (np.abs(rows - middle) < thick) | (np.abs(columns - middle) < thick)
        case "corner":
            inked = (rows >= side - thick) | (columns < thick)
        case _:
            inked = (rows % 6 < thick) & (rows < side - 1)
    return inked.astype(np.float32)
