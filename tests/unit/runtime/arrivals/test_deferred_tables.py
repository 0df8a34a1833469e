"""Segments that are opened without the bytes of their tables: what they answer, and who shares
them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from brisk.artefacts.container import HEADER_BYTES
from brisk.copies.manifest import Range
from brisk.errors import UnavailableError
from brisk.publishing import describing
from brisk.publishing.describing import describe
from brisk.segments.frame import run_serially
from brisk.segments.model.sources import BareModel
from brisk.segments.prepared.form import PreparedModel, find_prepared
from brisk.segments.prepared.preparation import prepare
from brisk.segments.source import FileBytes, RowTable, Source
from brisk.segments.starting import start_segments
from support.models.segment_models import info, save, whole

ROWS, WIDTH = 8192, 128
IDS = np.array([[0, ROWS - 1, -3, 77]])
TABLE = np.random.default_rng(4).standard_normal((ROWS, WIDTH)).astype("f4")
WEIGHTS = np.random.default_rng(5).standard_normal((WIDTH, WIDTH)).astype("f4")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(params=["f4", "f2"])
def model(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["r"]),
        helper.make_node("Cast", ["r"], ["x"], to=1),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Tanh", ["m"], ["y"]),
    ]
    table = np.tile(TABLE, (2, 1)).astype(request.param)
    inputs, outputs = [info("ids", "n", "s", kind=7)], [info("y", "n", "s", WIDTH)]
    return save(tmp_path / "m.onnx", nodes, inputs, outputs, {"t": table, "w": WEIGHTS})


def never() -> None:
    raise AssertionError("nothing reads the table")


def deferred(source: Source) -> list[RowTable]:
    count = len(source.plan.segments)
    return [table for index in range(count) for table in source.defer_tables(index, never)]


def content_of(place: FileBytes) -> bytes:
    return place.path.read_bytes()[place.offset : place.offset + place.size]


def check(source: Source, model: Path) -> None:
    (table,) = deferred(source)
    assert (table.ids, table.rows) == ("ids", 2 * ROWS)
    starting = start_segments(source)
    starting.table.work("test")
    dtype = "f4" if table.place.size == 2 * TABLE.nbytes else "f2"
    assert content_of(table.place) == np.tile(TABLE, (2, 1)).astype(dtype).tobytes()
    answer = run_serially(starting.program, {"ids": IDS})["y"]
    np.testing.assert_allclose(answer, whole(model, {"ids": IDS})["y"], rtol=1e-4, atol=1e-4)


def test_a_model_is_opened_without_them(model: Path) -> None:
    check(BareModel(model, 1, is_awaited=True), model)


def test_so_is_a_prepared_form_in_sessions_of_its_own(model: Path) -> None:
    prepare(model, 1)
    form = find_prepared(model)
    assert form is not None
    plain, apart = (PreparedModel(form, model, 1) for _ in range(2))
    check(apart, model)
    shared = plain.open(0)  # as long as somebody has it
    assert PreparedModel(form, model, 1).open(0).session is shared.session
    assert apart.open(0).session is not shared.session


def test_of_a_form_whose_segments_have_not_come_they_are_known(model: Path) -> None:
    """Its header and its manifest are there, as where it arrives."""
    prepare(model, 1)
    form = find_prepared(model)
    assert form is not None
    there = deferred(PreparedModel(form, model, 1))
    content = form.read_bytes()
    manifest_bytes = int.from_bytes(content[16:24], "little")
    form.chmod(0o600)
    with form.open("r+b") as file:
        file.seek(HEADER_BYTES)
        file.write(bytes(len(content) - HEADER_BYTES - manifest_bytes))
    assert deferred(PreparedModel(form, model, 1)) == there


def test_a_damaged_table_is_none_of_an_opening(model: Path) -> None:
    """Its chunks are compared with the manifest's digests before anybody can read them."""
    prepare(model, 1)
    form = find_prepared(model)
    assert form is not None
    source = PreparedModel(form, model, 1)
    (table,) = deferred(source)
    with form.open("r+b") as file:
        file.seek(table.place.offset + table.place.size // 2)
        file.write(b"?" * 64)
    source.open(0)


def test_an_opening_that_is_refused_in_place_waits_for_them(tmp_path: Path) -> None:
    """As of an operator that nobody knows: optimising, which reads them, might help."""
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["r"]),
        helper.make_node("NoSuchOperator", ["r"], ["y"]),
    ]
    inputs, outputs = [info("ids", "n", "s", kind=7)], [info("y", "n", "s", WIDTH)]
    path = save(tmp_path / "m.onnx", nodes, inputs, outputs, {"t": TABLE})
    source = BareModel(path, 1, is_awaited=True)

    def gone() -> None:
        raise UnavailableError("waited")

    assert source.defer_tables(0, gone)
    for _ in range(3):  # of a lane, of a request that overtakes it, of the lane once more
        with pytest.raises(UnavailableError, match="waited"):
            source.open(0)


def test_they_come_last_where_nobody_has_asked_for_rows(model: Path) -> None:
    published = describe(model, 1, with_form=False)
    last = published.manifest.order[-1]
    (table,) = deferred(BareModel(model, 1, is_awaited=True))
    assert last == Range(0, table.place.offset, table.place.size)


def test_one_that_another_segment_reads_whole_comes_with_that_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describing, "cuts_of", lambda path: ("m",))
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["m"]),
        helper.make_node("Transpose", ["t"], ["head"]),
        helper.make_node("MatMul", ["m", "head"], ["h"]),
        helper.make_node("MatMul", ["h", "v"], ["y"]),
    ]
    last = np.ones((2 * ROWS, 64), "f4")
    weights = {"t": np.tile(TABLE, (2, 1)), "w": WEIGHTS, "v": last}
    inputs, outputs = [info("ids", "n", "s", kind=7)], [info("y", "n", "s", 64)]
    path = save(tmp_path / "m.onnx", nodes, inputs, outputs, weights)
    order = describe(path, 1, with_form=False).manifest.order
    assert [part.size for part in order] == [WEIGHTS.nbytes, 2 * TABLE.nbytes, last.nbytes]
