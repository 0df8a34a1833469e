"""A model that reads rows of a table answers when those that a request asks for are here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.copies.connection import resolve
from brisk.copies.courier import Courier
from brisk.copies.local import copy_of
from brisk.errors import BriskError
from brisk.protocol.records import TensorForm
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.publishing import describing
from brisk.runtime.arrivals.rows import ArrivingRows, ArrivingTable
from brisk.stub.runtime_client.client import RuntimeClient
from support.models.segment_models import info, save, whole
from support.remote.entries import end_courier, publish_here
from support.remote.registries import RegistryServer
from support.runtime.runtime_process import Answer, describe, opened
from support.waiting import wait_until

CHUNK = 1 << 18
ROWS, WIDTH = 16384, 256
HERE_ROWS = 4096
"""Of which the bytes may be fetched: 16 of 64 chunks."""

EARLY = np.array([[3, 900, 2000, 3]])
LATE = np.array([[5, ROWS - 7, 900, 12000]])


def encoder(path: Path, kind: int = TensorProto.INT64) -> Path:
    """y float32 ``[n, WIDTH]`` of ids ``[n, s]``; the table is the last weight of the file."""
    rng = np.random.default_rng(5)
    weights = {
        f"w{layer}": (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype("f4")
        for layer in range(8)
    }
    weights["table"] = rng.standard_normal((ROWS, WIDTH)).astype("f4")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["x0"], axes=[1], keepdims=0),
    ]
    for layer in range(8):
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [f"x{layer + 1}"]))
    nodes.append(helper.make_node("Identity", ["x8"], ["y"]))
    return save(path, nodes, [info("ids", "n", "s", kind=kind)], [info("y", "n", WIDTH)], weights)


def ask(connection: RuntimeClient, ids: np.ndarray) -> Answer:
    kind = {"int64": "INT64", "int32": "INT32"}[ids.dtype.name]
    staged = connection.stage((TensorForm("ids", kind, ids.shape),), [ids.nbytes])
    connection.memory(staged.regions[0])[:] = ids.tobytes()
    answer = Answer()
    connection.submit(staged, ["y"], "normal", None, answer)
    return answer


def expect(answer: Answer, model: Path, ids: np.ndarray) -> None:
    right = whole(model, {"ids": ids})["y"]
    np.testing.assert_allclose(answer.output(), right, rtol=1e-4, atol=1e-5)


def held_rows(model: Path, name: str, registry: RegistryServer) -> None:
    """Rows from ``HERE_ROWS`` on are not sent."""
    table = model.stat().st_size - ROWS * WIDTH * 4  # what follows it is small
    registry.hold(f"/{name}/model.onnx", table + HERE_ROWS * WIDTH * 4)


@pytest.mark.parametrize("kind", [TensorProto.INT64, TensorProto.INT32])
def test_requests_wait_for_their_own_rows_and_for_no_others(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path, kind: int
) -> None:
    model = encoder(tmp_path / "model.onnx", kind)
    numbers = np.int64 if kind == TensorProto.INT64 else np.int32
    early, late = EARLY.astype(numbers), LATE.astype(numbers)
    remote = publish_here(registry, model)
    held_rows(model, "m", registry)
    local = resolve(remote)
    with opened(place, describe(local)) as connection:
        negative = ask(connection, early - ROWS)
        expect(ask(connection, early), model, early)
        expect(negative, model, early)
        waiting = ask(connection, late)
        time.sleep(0.3)
        assert not waiting.has_come
        for _ in range(20):
            expect(ask(connection, early), model, early)
        assert not waiting.has_come
        assert not copy_of(local).is_whole
        registry.let_go()
        expect(waiting, model, late)
        wait_until(lambda: copy_of(local).is_whole, "the rest of the table")
        everything = np.arange(ROWS, dtype=numbers).reshape(64, -1)
        expect(ask(connection, everything), model, everything)


def test_a_row_that_there_is_not_is_refused_and_waited_for_by_nobody(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path
) -> None:
    model = encoder(tmp_path / "model.onnx")
    remote = publish_here(registry, model)
    held_rows(model, "m", registry)
    with opened(place, describe(resolve(remote))) as connection:
        for wrong in (ROWS, -ROWS - 1, 1 << 40):
            answer = ask(connection, np.array([[1, wrong]])).wait()
            assert isinstance(answer.error, BriskError)
            assert "Gather" in str(answer.error) or "out of" in str(answer.error)
        expect(ask(connection, EARLY), model, EARLY)


def test_rows_of_a_published_form_come_first(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form's table lies before its other weights, which are here first all the same."""
    model = encoder(tmp_path / "model.onnx")
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "publisher"))
    remote = publish_here(registry, model, form=True)
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    (form,) = (registry.folder / "m" / "forms").iterdir()
    table = np.random.default_rng(5)
    for _ in range(8):
        table.standard_normal((WIDTH, WIDTH))
    start = form.read_bytes().find(table.standard_normal((ROWS, WIDTH)).astype("f4").tobytes())
    assert start > 0
    registry.hold(
        f"/m/forms/{form.name}", start + HERE_ROWS * WIDTH * 4, start + (ROWS - 64) * WIDTH * 4
    )
    told: list[str] = []
    with opened(place, describe(resolve(remote)), told.append) as connection:
        expect(ask(connection, EARLY), model, EARLY)
        waiting = ask(connection, LATE)
        assert any("from its artefact, while it arrives" in text for text in told), told
        time.sleep(0.3)
        assert not waiting.has_come
        registry.let_go()
        expect(waiting, model, LATE)


def test_a_lost_courier_keeps_no_row_away(
    registry: RegistryServer, place: RuntimePaths, tmp_path: Path
) -> None:
    model = encoder(tmp_path / "model.onnx")
    remote = publish_here(registry, model)
    held_rows(model, "m", registry)
    with opened(place, describe(resolve(remote))) as connection:
        expect(ask(connection, EARLY), model, EARLY)
        waiting = ask(connection, LATE)
        end_courier()
        registry.let_go()
        expect(waiting, model, LATE)


def test_rows_that_are_here_keep_no_fetch_alive(registry: RegistryServer, tmp_path: Path) -> None:
    """Else one that has failed, by a disk that is full for a moment, never begins anew."""
    remote = publish_here(registry, encoder(tmp_path / "model.onnx"))
    held_rows(tmp_path / "model.onnx", "m", registry)
    copy = copy_of(resolve(remote))
    assert copy is not None
    table = ArrivingTable(0, "ids", copy.manifest.order[-1], ROWS)
    is_over = threading.Event()
    told: list[str] = []
    rows = ArrivingRows(copy, [table], is_over.is_set, lambda: None, told.append)
    wait_until(lambda: rows.are_here({"ids": EARLY}), "the rows")
    with Courier() as courier:
        wait_until(lambda: not courier.status(), "the end of the fetch")
    registry.let_go()
    wait_until(lambda: rows.are_here({"ids": LATE}), "later rows")
    is_over.set()
    assert not told


def tied(path: Path) -> Path:
    """y float32 ``[n, ROWS]`` of ids ``[n, s]``: the table is the last weight, too, transposed."""
    rng = np.random.default_rng(6)
    weights = {
        "w": (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype("f4"),
        "table": rng.standard_normal((ROWS, WIDTH)).astype("f4"),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "w"], ["m"]),
        helper.make_node("Tanh", ["m"], ["hidden"]),
        helper.make_node("Transpose", ["table"], ["head"]),
        helper.make_node("MatMul", ["hidden", "head"], ["y"]),
    ]
    return save(path, nodes, [info("ids", "n", "s", kind=7)], [info("y", "n", ROWS)], weights)


def with_two_names(path: Path) -> Path:
    """y float32 ``[n, ROWS]`` of ids ``[n, s]``: a further weight lies where the table does."""
    rng = np.random.default_rng(7)
    table = rng.standard_normal((ROWS, WIDTH)).astype("f4")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "head"], ["y"]),
    ]
    weights = {"table": table, "head": table.reshape(WIDTH, ROWS)}
    options = {"save_as_external_data": True, "location": "weights.bin"}
    inputs, outputs = [info("ids", "n", "s", kind=7)], [info("y", "n", ROWS)]
    save(path, nodes, inputs, outputs, weights, **options)
    proto = onnx.load(path, load_external_data=False)
    first, second = proto.graph.initializer
    second.ClearField("external_data")
    second.external_data.extend(first.external_data)
    path.write_bytes(proto.SerializeToString())
    (path.parent / "weights.bin").write_bytes(table.tobytes())
    return path


@pytest.mark.parametrize(
    ("make", "cuts", "file"),
    [
        pytest.param(tied, ("hidden",), "model.onnx", id="by another segment"),
        pytest.param(with_two_names, (), "weights.bin", id="under another name"),
    ],
)
def test_a_table_that_is_read_whole_as_well_is_waited_for(
    registry: RegistryServer,
    place: RuntimePaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], Path],
    cuts: tuple[str, ...],
    file: str,
) -> None:
    monkeypatch.setattr(describing, "cuts_of", lambda path: cuts)
    model = make(tmp_path / "model.onnx")
    remote = publish_here(registry, model)
    data = (tmp_path / file).read_bytes()
    registry.hold(f"/m/{file}", len(data) - ROWS * WIDTH * 4 + HERE_ROWS * WIDTH * 4)
    local = resolve(remote)
    with opened(place, describe(local)) as connection:
        answer = ask(connection, EARLY)
        time.sleep(1.0)
        assert not answer.has_come
        registry.let_go()
        expect(answer, model, EARLY)
    assert len(copy_of(local).manifest.segments) == 1 + len(cuts)
