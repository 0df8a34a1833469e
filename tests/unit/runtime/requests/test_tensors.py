"""Inputs are seen where they lie, outputs lie where the peer looks for them."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from brisk.errors import InternalError, InvalidRequestError, ProtocolError
from brisk.protocol.records import Infer, InferForm, Region, TensorForm
from brisk.protocol.shared_memory import Arena, ArenaView
from brisk.runtime.peers.tensors import MAX_VIEWS, InputViews, write_tensors
from support.runtime.arena_views import follow

FORM = InferForm(0, (TensorForm("x", "FP32", (2, 3)),), ("y",), "normal")


class Pair:
    """An owner's arena and a peer's view of it."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.view = ArenaView()

    def allocate(self, size: int) -> Region:
        region = self.arena.allocate(size)
        follow(self.view, self.arena.take_changes())
        return region


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.arena.close()


def infer(region: Region, form: InferForm = FORM) -> Infer:
    return Infer(1, form, (region,), Region(0, 0, 64))


def test_an_input_is_a_view_that_shows_what_is_written_next(pair: Pair) -> None:
    inputs, region = InputViews(pair.view), pair.allocate(24)
    memory = np.frombuffer(pair.arena.memory(region), np.float32)
    memory[:] = 1.0
    (first,) = inputs.read(infer(region)).values()
    assert isinstance(first, np.ndarray)
    assert first.tolist() == [[1.0] * 3] * 2
    memory[:] = 2.0
    (second,) = inputs.read(infer(region)).values()
    assert second is first, "the same form in the same place is the same tensor"
    assert second.tolist() == [[2.0] * 3] * 2


def test_the_same_place_in_another_form_is_another_tensor(pair: Pair) -> None:
    inputs, region = InputViews(pair.view), pair.allocate(24)
    other = InferForm(0, (TensorForm("x", "INT32", (3, 2)),), ("y",), "normal")
    first, second = (inputs.read(infer(region, form))["x"] for form in (FORM, other))
    assert isinstance(first, np.ndarray)
    assert isinstance(second, np.ndarray)
    assert (first.dtype, tuple(first.shape)) == (np.float32, (2, 3))
    assert (second.dtype, tuple(second.shape)) == (np.int32, (3, 2))


def test_memory_is_let_go(pair: Pair) -> None:
    inputs, region = InputViews(pair.view), pair.allocate(24)
    inputs.read(infer(region))
    inputs.clear()
    pair.view.clear()
    with pytest.raises(ProtocolError, match="unknown"):
        inputs.read(infer(region))


def test_no_more_than_some_views_are_kept(pair: Pair) -> None:
    inputs = InputViews(pair.view)
    regions = [pair.allocate(24) for _ in range(2 * MAX_VIEWS)]
    for number, region in enumerate(regions):
        np.frombuffer(pair.arena.memory(region), np.float32)[:] = number
    for number, region in enumerate(regions):
        value = inputs.read(infer(region))["x"]
        assert isinstance(value, np.ndarray)
        assert float(value[0, 0]) == number


@pytest.mark.parametrize(
    ("form", "size", "reason"),
    [
        (TensorForm("x", "FP99", (1,)), 4, "unknown datatype 'FP99'"),
        (TensorForm("x", "FP32", (-1,)), 4, r"shape \[-1\]"),
        (TensorForm("x", "FP32", (2, 3)), 20, "takes 24 bytes, got 20"),
    ],
)
def test_an_input_that_fits_not_is_refused_each_time(
    pair: Pair, form: TensorForm, size: int, reason: str
) -> None:
    inputs, region = InputViews(pair.view), pair.allocate(24)
    asked = InferForm(0, (form,), ("y",), "normal")
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match=reason):
            inputs.read(infer(Region(region.slab, region.offset, size), asked))


def test_a_kept_view_does_not_hide_a_wrong_size(pair: Pair) -> None:
    inputs, region = InputViews(pair.view), pair.allocate(24)
    inputs.read(infer(region))
    with pytest.raises(InvalidRequestError, match="takes 24 bytes, got 8"):
        inputs.read(infer(Region(region.slab, region.offset, 8)))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (0, 3), ()])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize("turned", [False, True], ids=["contiguous", "strided"])
def test_outputs_are_copied_in_row_major_order(
    pair: Pair, shape: tuple[int, ...], dtype: type, turned: bool
) -> None:
    value = np.array(np.random.default_rng(3).integers(0, 2, shape)).astype(dtype)
    if turned and len(shape) > 1:
        value = value.swapaxes(0, -1)
    _, (form,), (region,) = write_tensors({"y": value}, pair.arena)
    assert form.shape == tuple(value.shape)
    written = bytes(pair.arena.memory(region)) if region.size else b""
    assert written == np.ascontiguousarray(value).tobytes()


def test_outputs_of_one_kind_have_the_same_forms(pair: Pair) -> None:
    values = {"y": np.ones((2, 3), np.float32), "z": np.ones(4, np.int32)}
    _, first, regions = write_tensors(values, pair.arena)
    _, second, _ = write_tensors({name: value * 2 for name, value in values.items()}, pair.arena)
    assert second is first
    assert [form.datatype for form in first] == ["FP32", "INT32"]
    assert regions[1].offset % 64 == 0


def test_strings_lie_beside_tensors(pair: Pair) -> None:
    values = {"y": np.array(["ab", "c"], object), "z": np.ones(1, np.float32)}
    whole, forms, regions = write_tensors(values, pair.arena)
    assert whole is not None
    assert [(form.datatype, form.shape) for form in forms] == [("BYTES", (2,)), ("FP32", (1,))]
    assert bytes(pair.arena.memory(regions[0])) == b"\2\0\0\0ab\1\0\0\0c"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "is no tensor"),
        ([np.ones(1)], "is no tensor"),
        (np.ones(1, np.complex64), "a tensor of complex64"),
    ],
)
def test_what_triton_has_no_datatype_for_is_refused(
    pair: Pair, value: object, reason: str
) -> None:
    with pytest.raises(InternalError, match=f"'y' .*{reason}"):
        write_tensors({"y": value}, pair.arena)  # type: ignore[dict-item]
    assert pair.arena.statistics()["used_bytes"] == 0
