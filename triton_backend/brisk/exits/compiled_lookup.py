"""A learned cache's look-up as one call of machine code.

A look-up of one row is some forty calls of torch, each of a few microseconds whatever it
computes. Here the predictor becomes steps for the executor of small layers, and the gate and the
selector one function behind it. ``LookUp`` stays the definition, and is what is called where there
is no compiler, until the executor has been compiled, and for networks that have no steps.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from ctypes import c_bool, c_float
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from brisk.compiled.asked import LookUpEntry
from brisk.compiled.library import Library, library
from brisk.compiled.verdict import MOST_GREATEST, MOST_RANK, RANK_STEP, VerdictEntry
from brisk.exits.gate import DistanceGate, as_bytes
from brisk.exits.lookup import FARTHEST, FLOOR, LookUp, Selector, SoftmaxLookUp
from brisk.exits.predictor_steps import as_array, as_sizes, draw_predictor
from brisk.exits.variants import Shape, weights_bytes
from brisk.native.sketch import RefusedError, Sketch

MOST_ROWS = 64


@dataclass(frozen=True, slots=True, eq=False)
class LookedUp:
    """What a look-up says of each row: its score, and whether it is near the training data.

    Plain numbers: a call of torch between two layers, when its code is in no cache, takes as long
    as a look-up. So the logits, of which a miss needs nothing, become a tensor when asked for.
    """

    scores: Sequence[float]
    near: Sequence[bool]
    classes: int
    found: torch.Tensor | ctypes.Array[c_float]

    @property
    def logits(self) -> torch.Tensor:
        """Float32 [rows, classes]."""
        if isinstance(self.found, torch.Tensor):
            return self.found
        return torch.frombuffer(self.found, dtype=torch.float32).view(-1, self.classes)


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A look-up for machine code, all that it reads and writes; to be kept until it is done."""

    library: Library
    entry: LookUpEntry
    address: int
    hidden: torch.Tensor
    logits: ctypes.Array[c_float]
    scores: ctypes.Array[c_float]
    near: ctypes.Array[c_bool]
    by: CompiledLookUp

    def looked_up(self, rows: int) -> LookedUp:
        """What it says of the first ``rows``. Precondition: it is done."""
        classes = len(self.logits) // len(self.scores)
        logits = (c_float * (rows * classes)).from_buffer_copy(self.logits)
        return LookedUp(self.scores[:rows], self.near[:rows], classes, logits)


ReadyLookUp = Callable[[torch.Tensor], LookedUp]
"""Of hidden outputs, float32 [rows, ...]."""


def ready_look_up(network: LookUp, shape: Shape) -> ReadyLookUp:
    """The fastest way to ask ``network``, whose weights must not change any more."""
    if type(network) in (LookUp, SoftmaxLookUp):
        with contextlib.suppress(RefusedError):
            return CompiledLookUp(network, shape)
    return functools.partial(asked_by_torch, network)


def asked_by_torch(network: LookUp, hidden: torch.Tensor) -> LookedUp:
    """The definition itself, layer by layer."""
    with torch.inference_mode():
        logits, scores, near = network(hidden)
        return LookedUp(scores.tolist(), near.tolist(), logits.shape[1], logits)


def look_up_bytes(network: LookUp, shape: Shape) -> int:
    """Memory of the weights of a look-up, those that its compiled form copies included."""
    own = weights_bytes(network)
    return own * 2 if is_compiled(network, shape) else own


def is_compiled(network: LookUp, shape: Shape) -> bool:
    """Whether machine code will look it up, which takes the library that is there by then."""
    return isinstance(ready_look_up(network, shape), CompiledLookUp) and library() is not None


class CompiledLookUp:
    """Float32 [rows, *shape] to what ``network`` gives, to rounding; NaN scores 0.

    Any thread may call it; calls that overlap in time wait for each other. Raises RefusedError
    where the network has no steps.
    """

    def __init__(self, network: LookUp, shape: Shape) -> None:
        self._network = network
        self._shape = shape
        self._order = torch.channels_last if len(shape) == 3 else torch.contiguous_format
        self._classes = _last(network.predictor).out_features
        self._sketch: Sketch | None = draw_predictor(network.predictor, shape)
        self._arrays: dict[str, np.ndarray] = {}
        self._verdict = VerdictEntry(**_geometry(shape), classes=self._classes)
        if not isinstance(network, SoftmaxLookUp):
            self._arrays = {
                **_fill_gate(self._verdict, network.gate, shape),
                **_fill_selector(self._verdict, network.selector),
            }
            self._verdict.floor = float(network.floor)
            for name, array in self._arrays.items():
                setattr(self._verdict, name, array.ctypes.data)
        self._address = ctypes.addressof(self._verdict)
        self._library: Library | None = None
        self._own = threading.local()
        self._steps: int | None = None

    def __call__(self, hidden: torch.Tensor) -> LookedUp:
        looked = self.ask_here(hidden, -math.inf)
        assert looked is not None, "every row scores that"
        return looked

    def ask_here(self, hidden: torch.Tensor, threshold: float) -> LookedUp | None:
        """In this thread; None: no row scores ``threshold``, and all are near.

        Between two layers all that a call touches has to come from memory first: torch and ctypes
        took three times as long as the look-up. So memory for results is kept by each thread.
        """
        rows, executor = hidden.shape[0], self._library or self._prepare()
        if executor is None or not 0 < rows <= MOST_ROWS or hidden.shape[1:] != self._shape:
            return asked_by_torch(self._network, hidden)
        if not hidden.is_contiguous(memory_format=self._order):
            hidden = hidden.contiguous(memory_format=self._order)
        try:
            own: Asked = self._own.asked
        except AttributeError:
            own = self._own.asked = self._asked(executor, hidden, MOST_ROWS)
        if not executor.look_up(own.address, hidden.data_ptr(), rows, threshold):
            return None
        return own.looked_up(rows)

    def ask(self, hidden: torch.Tensor, threshold: float, *, may_stop: bool) -> Asked | None:
        """A look-up for a lane; None: only torch can.

        ``may_stop``: where all rows score ``threshold``, the model need not go on.
        """
        rows, executor = hidden.shape[0], self._library or self._prepare()
        if executor is None or not 0 < rows <= MOST_ROWS or hidden.shape[1:] != self._shape:
            return None
        if not hidden.is_contiguous(memory_format=self._order):
            hidden = hidden.contiguous(memory_format=self._order)
        asked = self._asked(executor, hidden, rows)
        asked.entry.threshold, asked.entry.may_stop = threshold, may_stop
        return asked

    def _asked(self, executor: Library, hidden: torch.Tensor, rows: int) -> Asked:
        logits = (c_float * (rows * self._classes))()
        scores, near = (c_float * rows)(), (c_bool * rows)()
        entry = LookUpEntry(
            *(self._steps, self._address, hidden.data_ptr()),
            *(ctypes.addressof(logits), ctypes.addressof(scores), ctypes.addressof(near)),
            *(math.inf, rows, False),
        )
        return Asked(executor, entry, ctypes.addressof(entry), hidden, logits, scores, near, self)

    def _prepare(self) -> Library | None:
        """The executor, with the steps made, once it is there."""
        executor, sketch = library(), self._sketch
        if executor is None or sketch is None:
            return None
        self._steps = sketch.compiled().network(executor)
        executor.reserve(self._steps, MOST_ROWS)
        weakref.finalize(self, executor.delete, self._steps)
        self._sketch, self._library = None, executor
        return executor


def _last(predictor: nn.Module) -> nn.Linear:
    found = predictor[-1] if isinstance(predictor, nn.Sequential) else predictor
    if not isinstance(found, nn.Linear):
        raise RefusedError(f"a predictor that ends with {type(found).__name__}")
    return found


def _geometry(shape: Shape) -> dict[str, int]:
    channels, height, width = (*as_sizes(shape), 1, 1)[:3]
    is_flat = int(len(shape) == 1)
    return {"height": height, "width": width, "channels": channels, "is_flat": is_flat}


def _fill_gate(verdict: VerdictEntry, gate: DistanceGate, shape: Shape) -> dict[str, np.ndarray]:
    """The gate's arrays: features in the order of C++, its rank padded with zeros."""
    features, rank = gate.basis.shape
    padded = math.ceil(rank / RANK_STEP) * RANK_STEP
    if padded > MOST_RANK:
        raise RefusedError(f"a gate of {rank} dimensions, at most {MOST_RANK}")
    order = np.arange(features)
    if len(shape) > 1:  # torch counts channels first, then quarters; the root mean squares last
        channels = features // 5
        quarters = order[: 4 * channels].reshape(channels, 4).T.reshape(-1)
        order = np.concatenate([quarters, order[4 * channels :]])
    verdict.features, verdict.rank = features, padded
    verdict.outside, verdict.limit = float(gate.outside), float(gate.limit)
    more = padded - rank
    steps, unit = as_bytes(gate.basis.detach())
    return {
        "mean": np.ascontiguousarray(as_array(gate.mean)[order]),
        "scale": np.ascontiguousarray(as_array(gate.scale)[order]),
        "unit": np.ascontiguousarray(as_array(unit)[order]),
        "basis": np.pad(steps.numpy()[order], ((0, 0), (0, more))),
        "whitening": np.pad(as_array(gate.whitening), ((0, more), (0, more))),
        "centres": np.pad(as_array(gate.centres), ((0, 0), (0, more))),
    }


def _fill_selector(verdict: VerdictEntry, selector: Selector) -> dict[str, np.ndarray]:
    first, _, last = selector.network
    assert isinstance(first, nn.Linear), "as Selector is made"
    assert isinstance(last, nn.Linear), "as Selector is made"
    if selector.width > MOST_GREATEST:
        raise RefusedError(f"a selector of {selector.width} probabilities")
    verdict.greatest, verdict.units = selector.width, first.out_features
    verdict.last_bias = float(last.bias)
    verdict.least_logarithm, verdict.farthest = FLOOR, FARTHEST
    return {
        "hidden": as_array(first.weight),
        "hidden_bias": as_array(first.bias),
        "last": np.ascontiguousarray(as_array(last.weight)[0]),
    }
