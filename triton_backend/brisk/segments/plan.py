"""A model as segments, without what computes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from brisk.graph.program import Variable


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """``inputs``, ``outputs``: names of the values that cross its borders, in order.

    ``dead``: values that nothing behind it reads. ``words``: its first and last node.
    """

    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dead: tuple[str, ...]
    words: str


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """``defaults``: of inputs that a request may leave out, by name. ``fixed``: inputs that have a
    default in the model's file and take nothing else here.
    """

    name: str
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    segments: tuple[SegmentSpec, ...]
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)
    fixed: tuple[Variable, ...] = ()
