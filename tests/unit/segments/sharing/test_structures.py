"""Models of one structure run in one session, each with its own weights."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from brisk.errors import ArtefactError
from brisk.segments import sharing
from brisk.segments.frame import run_serially
from brisk.segments.model.sources import BareModel
from brisk.segments.onnxruntime import OrtSession
from brisk.segments.prepared import form, manifest, trial
from brisk.segments.prepared.form import PreparedModel
from brisk.segments.prepared.preparation import prepare
from brisk.segments.starting import open_warm_program
from brisk.tuning import SessionTuning
from support.models.segment_models import (
    by_segments,
    chain,
    classifier,
    info,
    run_in_turn,
    save,
    whole,
)

pytestmark = pytest.mark.usefixtures("private_cache", "whatever_it_takes")

WIDTH = 64
ROWS = np.random.default_rng(5).standard_normal((3, WIDTH)).astype(np.float32)


@pytest.fixture
def whatever_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To give the weights of a network of microseconds takes a part of its time."""
    monkeypatch.setattr(trial, "MOST_LOST", math.inf)


def network(path: Path, seed: int, prefix: str = "", split: int = 2) -> Path:
    """Two branches of a product, a scale and a bias each; ``seed``: of all weights.

    ``prefix``: of every name but the ends'; ``split``: rows of what an int64 constant cuts.
    """
    rng = np.random.default_rng(seed)
    weights: dict[str, np.ndarray] = {}
    branches = []
    for branch in ("a", "b"):
        name = f"{prefix}{branch}"
        weights[f"{name}w"] = rng.standard_normal((WIDTH, WIDTH)).astype("f4")
        weights[f"{name}s"] = rng.standard_normal(WIDTH).astype("f4")
        activation = "Tanh" if branch == "a" else "Relu"
        branches.append(
            [
                helper.make_node("MatMul", ["x", f"{name}w"], [f"{name}p"]),
                helper.make_node("Mul", [f"{name}p", f"{name}s"], [f"{name}m"]),
                helper.make_node(activation, [f"{name}m"], [f"{name}t"]),
            ]
        )
    shape = np.array([-1, split, WIDTH // split], np.int64)
    weights[f"{prefix}shape"] = shape
    if prefix:
        branches.reverse()  # another exporter writes its nodes in another order
    nodes = [node for branch in branches for node in branch]
    nodes += [
        helper.make_node("Sub", [f"{prefix}at", f"{prefix}bt"], [f"{prefix}d"]),
        helper.make_node("Reshape", [f"{prefix}d", f"{prefix}shape"], ["y"]),
    ]
    outputs = [info("y", "n", split, WIDTH // split)]
    return save(path, nodes, [info("x", "n", WIDTH)], outputs, weights)


def prepared(path: Path, threads: int = 1, **options: object) -> PreparedModel:
    return PreparedModel(prepare(path, threads).path, path, threads, **options)  # type: ignore[arg-type]


def digests(source: PreparedModel) -> list[str | None]:
    return [each.structure and each.structure.digest for each in source.kept]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Sequence[OrtSession]:
    """Sessions of structures, as they are made."""
    found: list[OrtSession] = []
    real = sharing.open_structure

    def counted(*arguments: object, **options: object) -> OrtSession:
        found.append(real(*arguments, **options))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(form, "open_structure", counted)
    return found


@pytest.mark.parametrize("packs", [False, True])
def test_the_next_model_of_a_structure_makes_no_session(
    tmp_path: Path, made: Sequence[OrtSession], monkeypatch: pytest.MonkeyPatch, packs: bool
) -> None:
    monkeypatch.setattr(manifest, "LEAST_GAIN", 0.0 if packs else 99.0)
    monkeypatch.setattr(manifest, "LEAST_BATCH_GAIN", 99.0)
    first = prepared(network(tmp_path / "first.onnx", 1))
    second = prepared(network(tmp_path / "second.onnx", 2, prefix="other_"))
    assert digests(first) == digests(second)
    assert None not in digests(first)
    program = open_warm_program(first)
    assert len(made) == 1
    answers = []
    for source, path in ((first, "first.onnx"), (second, "second.onnx")):
        alone = PreparedModel(source.path, tmp_path / path, 1, shares=False)
        answers.append(run_in_turn(source, {"x": ROWS})["y"])
        assert answers[-1].tobytes() == run_in_turn(alone, {"x": ROWS})["y"].tobytes()
    assert len(made) == 1
    assert not np.array_equal(*answers)
    assert (run_serially(program, {"x": ROWS})["y"] == answers[0]).mean() > 0.1


@pytest.mark.parametrize("packs", [False, True])
def test_beside_a_warm_model_of_several_segments_the_next_one_finds_all(
    tmp_path: Path,
    short_segments: None,
    made: Sequence[OrtSession],
    monkeypatch: pytest.MonkeyPatch,
    packs: bool,
) -> None:
    """On two threads, where a warm session waits in another manner than a first one."""
    monkeypatch.setattr(manifest, "LEAST_GAIN", 0.0 if packs else 99.0)
    monkeypatch.setattr(manifest, "LEAST_BATCH_GAIN", 99.0)
    first, second = (
        prepared(chain(tmp_path / f"{seed}.onnx", seed=seed), threads=2) for seed in (1, 2)
    )
    indices = range(len(first.kept))
    assert len(indices) > 1
    cold = [first.open(index) for index in indices]
    warm = [first.open_warm(index) for index in indices]
    del cold
    before = len(made)
    found = [second.open(index) for index in indices]
    assert len(made) == before
    assert second.lookups == {"found": len(indices), "made": 0}
    assert first.lookups["made"] == before
    del warm, found


@pytest.mark.parametrize("threads", [1, 2])
def test_where_a_structure_is_slower_only_a_start_runs_in_it(
    tmp_path: Path,
    short_segments: None,
    made: Sequence[OrtSession],
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
) -> None:
    monkeypatch.setattr(trial, "MOST_LOST", -math.inf)
    monkeypatch.setattr(trial, "MOST_LOST_S", -math.inf)
    monkeypatch.setattr(trial, "MOST_LOST_BY_START", math.inf)
    monkeypatch.setattr(manifest, "LEAST_GAIN", 99.0)
    monkeypatch.setattr(manifest, "LEAST_BATCH_GAIN", 99.0)
    first, second = (
        prepared(chain(tmp_path / f"{seed}.onnx", seed=seed), threads=threads) for seed in (1, 2)
    )
    indices = range(len(first.kept))
    assert len(indices) > 1
    alone = [first.open(index) for index in indices]
    assert [each.run for each in alone] == [None] * len(indices), "no structure is there"
    assert not made
    warm = [first.open_warm(index) for index in indices]
    assert [each is not None and each.run for each in warm] == [None] * len(indices)
    before = len(made)
    assert before > 0, "for the next model"
    start = [second.open(index) for index in indices]
    assert None not in [each.run for each in start]
    x = np.random.default_rng(3).standard_normal((3, 512)).astype(np.float32)
    answer = run_in_turn(second, {"x": x})["y"].tobytes()
    own = [second.open_warm(index) for index in indices]
    assert [each is not None and each.run for each in own] == [None] * len(indices)
    assert len(made) == before
    expected = PreparedModel(second.path, tmp_path / "2.onnx", threads, shares=False)
    assert answer == run_in_turn(expected, {"x": x})["y"].tobytes()
    assert second.open(0).session is own[0].session, "once it is there"  # type: ignore[union-attr]


def test_a_structure_in_which_a_start_gains_nothing_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOST_LOST", "MOST_LOST_S", "MOST_LOST_BY_START"):
        monkeypatch.setattr(trial, name, -math.inf)
    assert digests(prepared(network(tmp_path / "model.onnx", 1))) == [None]


def test_what_decides_shapes_tells_structures_apart(tmp_path: Path) -> None:
    one, other = (prepared(network(tmp_path / f"{n}.onnx", 1, split=n)) for n in (2, 4))
    assert None not in digests(one) + digests(other)
    assert digests(one) != digests(other)


def test_threads_and_wishes_of_an_entry_tell_sessions_apart(
    tmp_path: Path, made: Sequence[OrtSession]
) -> None:
    path = network(tmp_path / "model.onnx", 1)
    place = prepare(path, 1).path
    sources = [
        PreparedModel(place, path, 1),
        PreparedModel(place, path, 2),
        PreparedModel(place, path, 1, tuning=SessionTuning(uses_arena=False)),
        PreparedModel(place, path, 1),
    ]
    opened = [each.open(0) for each in sources]
    assert len(made) == 3
    alone = PreparedModel(place, path, 1, tuning=SessionTuning(shares_structures=False))
    assert alone.open(0).run is None
    assert len(made) == 3
    assert opened[0].session is opened[3].session


def test_a_structure_lives_as_long_as_a_model_of_it(
    tmp_path: Path, made: list[OrtSession]
) -> None:
    first = prepared(network(tmp_path / "first.onnx", 1))
    second = prepared(network(tmp_path / "second.onnx", 2))
    first.open(0)
    kept = weakref.ref(made.pop())
    session = second.open(0)
    del first
    gc.collect()
    assert kept() is not None
    expected = run_in_turn(second, {"x": ROWS})["y"]
    assert np.isfinite(expected).all()
    del second, session
    gc.collect()
    assert kept() is None


def test_segments_of_one_shape_share_a_session_within_a_model(
    tmp_path: Path, short_segments: None, made: Sequence[OrtSession]
) -> None:
    source = prepared(chain(tmp_path / "chain.onnx"))
    for index in range(len(source.plan.segments)):
        source.open(index)
    found = digests(source)
    assert len(made) == len(set(found)) < len(found)


@pytest.mark.parametrize("what", ["int8", "body", "handed on"])
def test_what_no_other_model_could_run_in_has_no_structure(tmp_path: Path, what: str) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((WIDTH, WIDTH)).astype("f4")}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    outputs = [info("y", "n", WIDTH)]
    if what == "int8":
        weights = {
            "w": rng.integers(0, 255, (WIDTH, WIDTH)).astype("u1"),
            "s": np.array(0.1, "f4"),
            "z": np.array(3, "u1"),
        }
        nodes = [
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["d"]),
            helper.make_node("MatMul", ["x", "d"], ["y"]),
        ]
    elif what == "handed on":
        outputs.append(info("x", "n", WIDTH))
    else:
        branch = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["b"])], "then", [], [info("b", "n", WIDTH)]
        )
        other = helper.make_graph(
            [helper.make_node("Neg", ["x"], ["c"])], "else", [], [info("c", "n", WIDTH)]
        )
        weights["t"] = np.array(0.0, "f4")
        nodes = [
            helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
            helper.make_node("Greater", ["m", "t"], ["g"]),
            helper.make_node("If", ["g"], ["y"], then_branch=branch, else_branch=other),
        ]
    path = save(tmp_path / "model.onnx", nodes, [info("x", "n", WIDTH)], outputs, weights)
    source = prepared(path)
    if what != "int8" or source.kept[0].needs_packing:
        assert digests(source) == [None]
    run_in_turn(source, {"x": ROWS})


def test_weights_of_other_shapes_are_refused(tmp_path: Path) -> None:
    source = prepared(network(tmp_path / "model.onnx", 1))
    (kept,) = source.kept
    assert kept.structure is not None
    first, *others = kept.structure.weights
    changed = replace(first, shape=(*first.shape, 1))
    source.kept = (replace(kept, structure=replace(kept.structure, weights=(changed, *others))),)
    with pytest.raises(ArtefactError, match="which its structure does not take"):
        source.open(0)
    source.kept = (replace(kept, structure=replace(kept.structure, weights=tuple(others))),)
    with pytest.raises(ArtefactError, match="not all weights of its structure"):
        source.open(0)


def test_models_that_answer_in_text_run_in_one_session(
    tmp_path: Path, made: Sequence[OrtSession]
) -> None:
    for seed in (1, 2):
        path = classifier(tmp_path / f"{seed}.onnx", seed, WIDTH)
        expected = whole(path, {"x": ROWS})["y"].tolist()
        assert len(set(expected)) > 1
        source = prepared(path)
        assert source.open(0).run is not None
        assert run_in_turn(source, {"x": ROWS})["y"].tolist() == expected
        ahead = BareModel(path, 1)
        ahead.make_ahead(0)
        assert by_segments(ahead, {"x": ROWS})["y"].tolist() == expected


def test_text_goes_into_a_session_that_was_made_ahead(tmp_path: Path) -> None:
    weights = {"w": np.eye(WIDTH, dtype=np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Concat", ["words", "words"], ["twice"], axis=0),
    ]
    words, twice = (info(name, "n", kind=TensorProto.STRING) for name in ("words", "twice"))
    ends = [info("x", "n", WIDTH), words], [info("y", "n", WIDTH), twice]
    source = BareModel(save(tmp_path / "model.onnx", nodes, *ends, weights), 1)
    source.make_ahead(0)
    assert source._ahead
    found = by_segments(source, {"x": ROWS, "words": np.array(["a", "b"], object)})
    assert found["twice"].tolist() == ["a", "b", "a", "b"]
    np.testing.assert_array_equal(found["y"], ROWS)
