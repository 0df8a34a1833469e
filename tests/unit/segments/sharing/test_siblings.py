"""A model that nobody has prepared is started by the form of another one of its structure."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.artefacts import skeletons, store
from brisk.cli.views.segments import segments_text
from brisk.errors import ArtefactError, InvalidModelError
from brisk.runtime.sessions.segment_session import SegmentSession, load_segment_session
from brisk.segments.frame import run_serially
from brisk.segments.model.model_file import read_model_file
from brisk.segments.prepared import preparation, recipes, siblings
from brisk.segments.prepared.form import PreparedModel
from brisk.segments.prepared.preparation import prepare
from brisk.segments.prepared.recipes import Fold, Recipe, follow
from brisk.segments.prepared.siblings import skeleton_of
from brisk.segments.starting import usable_cores
from support.models.segment_models import chain, classifier, info, save, whole

pytestmark = pytest.mark.usefixtures("private_cache", "shares_whatever_it_takes")

IMAGE = np.random.default_rng(5).standard_normal((1, 3, 20, 20)).astype(np.float32)


def refuse(error: ArtefactError) -> None:
    raise AssertionError(error)


def network(
    path: Path,
    seed: int,
    *,
    is_new: bool = False,
    most: float = 6.0,
    width: int = 24,
    unsqueezes: bool = False,
    doc: str = "",
) -> Path:
    """Convolutions with and without a bias, a normalisation, a scale, a depthwise one, a product.

    ``seed``: of all weights; ``is_new``: biases are all 0 and scales all 1, as before training;
    ``most``: what a node bounds values by; ``unsqueezes``: the scale is a vector in the file.
    """
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 4

    def vector(size: int, usual: float) -> np.ndarray:
        value = np.full(size, usual, np.float32)
        return value if is_new else value + normal(size) / 4

    weights: dict[str, np.ndarray] = {
        "w1": normal(width, 3, 3, 3),
        "w2": normal(width, width, 1, 1),
        "b2": vector(width, 0),
        "w3": normal(width, 1, 3, 3),
        "w4": normal(20, width, 3, 3),
        "b4": vector(20, 0),
        "s4": vector(20, 1),
        "axes": np.array([1, 2]),
        "w5": normal(20, 33),
        "b5": vector(33, 0),
        "least": np.array(-6.0, np.float32),
        "most": np.array(most, np.float32),
    }
    for layer in "123":
        weights |= {f"{part}{layer}": vector(width, usual) for part, usual in _NORMALISATION}

    def normalised(layer: str) -> list[onnx.NodeProto]:
        names = [f"{part}{layer}" for part, _ in _NORMALISATION]
        made = helper.make_node("BatchNormalization", [f"c{layer}", *names], [f"n{layer}"])
        return [made, helper.make_node("Clip", [f"n{layer}", "least", "most"], [f"r{layer}"])]

    pads = {"pads": [1, 1, 1, 1]}
    nodes: list[onnx.NodeProto] = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], **pads),
        *normalised("1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"]),
        *normalised("2"),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], group=width, **pads),
        *normalised("3"),
        helper.make_node("Conv", ["r3", "w4", "b4"], ["c4"]),
        helper.make_node("Unsqueeze", ["s4", "axes"], ["scale4"]),
        helper.make_node("Mul", ["c4", "scale4"], ["m4"]),
        helper.make_node("GlobalAveragePool", ["m4"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w5", "b5"], ["y"]),
    ]
    if not unsqueezes:
        nodes = [node for node in nodes if node.op_type != "Unsqueeze"]
        weights["scale4"] = weights.pop("s4").reshape(20, 1, 1)
        del weights["axes"]
    ends = [info("x", 1, 3, 20, 20)], [info("y", 1, 33)]
    save(path, nodes, *ends, weights)
    return path


_NORMALISATION = (("gamma", 1.0), ("beta", 0.0), ("mean", 0.0), ("variance", 1.0))


def load(path: Path) -> SegmentSession:
    session = load_segment_session(path, 1, refuse, None)
    assert session.table.wait(60)
    return session


def answer(session: SegmentSession, x: np.ndarray) -> np.ndarray:
    return run_serially(session.starting.program, {"x": x})["y"]


@pytest.mark.parametrize("unsqueezes", [False, True])
def test_the_next_version_answers_as_its_own_form_would(tmp_path: Path, unsqueezes: bool) -> None:
    """The first one as it is before training, where many weights are equal; all bits count."""
    prepare(network(tmp_path / "first.onnx", 1, is_new=True, unsqueezes=unsqueezes), 1)
    path = network(tmp_path / "next.onnx", 2, unsqueezes=unsqueezes)
    session = load(path)
    assert (session.origin, session.prepared, session.wants_artefact) == ("sibling", None, True)
    found = answer(session, IMAGE)
    np.testing.assert_allclose(found, whole(path, {"x": IMAGE})["y"], rtol=1e-4, atol=1e-5)
    prepare(path, 1)
    own = load(path)
    assert own.origin == "artefact"
    assert answer(own, IMAGE).tobytes() == found.tobytes()
    assert session.adopt_prepared(lambda: True)
    assert session.origin == "artefact"
    assert answer(session, IMAGE).tobytes() == found.tobytes()


def test_the_next_version_of_a_model_that_answers_in_text(tmp_path: Path) -> None:
    prepare(classifier(tmp_path / "first.onnx", 1), 1)
    path = classifier(tmp_path / "next.onnx", 2)
    rows = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    expected = whole(path, {"x": rows})["y"].tolist()
    session = load(path)
    assert session.origin == "sibling"
    assert answer(session, rows).tolist() == expected
    prepare(path, 1)
    assert session.adopt_prepared(lambda: True)
    assert session.origin == "artefact"
    assert answer(session, rows).tolist() == expected


def test_explain_says_by_whose_form_a_model_starts(tmp_path: Path) -> None:
    def told(path: Path) -> str:
        return "\n".join(segments_text(path, None, every=False))

    path = network(tmp_path / "first.onnx", 1)
    assert "it starts from its file" in told(path)
    made = prepare(path, usable_cores()).path
    assert "other models of its structure start by it" in told(path)
    following = network(tmp_path / "next.onnx", 2)
    assert f"it starts by that of a model like it ({made})" in told(following)
    prepare(following, usable_cores())
    assert "fits; other models of its structure start by it" in told(following)


def test_a_model_of_several_segments_with_weights_in_place(
    tmp_path: Path, short_segments: None
) -> None:
    prepare(chain(tmp_path / "first.onnx", seed=1), 1)
    path = chain(tmp_path / "next.onnx", seed=2)
    session = load(path)
    assert session.origin == "sibling"
    assert session.shared_segments == len(session.starting.program.plan.segments) > 1
    rows = np.random.default_rng(0).standard_normal((3, 512)).astype(np.float32)
    found = answer(session, rows)
    prepare(path, 1)
    assert answer(load(path), rows).tobytes() == found.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda path: network(path, 2, most=5.0),
        lambda path: network(path, 2, width=32),
        lambda path: chain(path, layers=2),
    ],
    ids=["a value that bounds", "another width", "another model"],
)
def test_what_differs_in_more_than_weights_is_no_sibling(
    tmp_path: Path, change: Callable[[Path], Path]
) -> None:
    first = network(tmp_path / "first.onnx", 1)
    prepare(first, 1)
    path = change(tmp_path / "next.onnx")
    assert skeleton_of(path) != skeleton_of(first)
    assert load(path).origin == "model"


def test_a_damaged_form_starts_nobody_and_the_model_starts_from_its_own_file(
    tmp_path: Path,
) -> None:
    made = prepare(network(tmp_path / "first.onnx", 1), 1).path
    data = bytearray(made.read_bytes())
    data[96:-4096] = bytes(len(data) - 96 - 4096)  # all weights and graphs
    made.chmod(0o600)
    made.write_bytes(data)
    path = network(tmp_path / "next.onnx", 2)
    session = load(path)
    expected = whole(path, {"x": IMAGE})["y"]
    np.testing.assert_allclose(answer(session, IMAGE), expected, rtol=1e-4, atol=1e-5)


def test_a_form_that_has_gone_is_forgotten(tmp_path: Path) -> None:
    made = prepare(network(tmp_path / "first.onnx", 1), 1).path
    notes = store.artefacts_directory() / "skeletons"
    assert len(list(notes.iterdir())) == 1
    skeletons.forget_unused(0)
    assert len(list(notes.iterdir())) == 1
    made.unlink()
    assert load(network(tmp_path / "next.onnx", 2)).origin == "model"
    skeletons.forget_unused(0)
    assert not list(notes.iterdir())


def test_models_that_are_optimised_otherwise_start_each_other_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if what is optimised were decided by the weights' values."""
    with monkeypatch.context() as patched:
        patched.setattr(siblings, "_skeleton", lambda file, floats: "the same")
        paths = [network(tmp_path / f"{seed}.onnx", seed) for seed in (1, 2)]
        assert [prepare(path, 1).agrees for path in paths] == [True, True]
        other = network(tmp_path / "other.onnx", 1, width=32)
        assert not prepare(other, 1).agrees
        assert load(network(tmp_path / "next.onnx", 5)).origin == "model"
        assert prepare(network(tmp_path / "last.onnx", 3), 1).agrees
        assert load(network(tmp_path / "next.onnx", 5)).origin == "model"


def test_a_model_whose_weights_are_all_laid_out_anew_starts_from_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To lay out many takes longer than to do without."""
    monkeypatch.setattr(preparation, "MOST_MADE_BYTES", 1000)
    prepare(network(tmp_path / "first.onnx", 1), 1)
    assert load(network(tmp_path / "next.onnx", 2)).origin == "model"


@pytest.mark.parametrize(("most", "origin"), [(20_000, "sibling"), (10_000, "model")])
def test_weights_of_every_type_count_where_all_are_copied_to_be_optimised_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, origin: str
) -> None:
    """8192 bytes of a table of integers, and 4224 of floats."""
    monkeypatch.setattr(recipes, "MOST_BYTES", most)
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["rows"]),
        helper.make_node("Cast", ["rows"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["floats", "w"], ["y"]),
    ]
    table = np.arange(2048, dtype=np.int32).reshape(64, 32)
    for name in ("first", "next"):
        w = np.random.default_rng(len(name)).standard_normal((32, 33)).astype("f4")
        ends = [info("x", "n", kind=TensorProto.INT64)], [info("y", "n", 33)]
        save(tmp_path / f"{name}.onnx", nodes, *ends, {"table": table, "w": w})
    prepare(tmp_path / "first.onnx", 1)
    assert load(tmp_path / "next.onnx").origin == origin


def test_a_form_of_slower_structures_starts_no_other_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on in them until it has a form of its own."""
    monkeypatch.setattr(preparation, "LEAST_SPEED", math.inf)
    prepare(network(tmp_path / "first.onnx", 1), 1)
    assert load(network(tmp_path / "next.onnx", 2)).origin == "model"


def test_a_note_that_leads_elsewhere_is_not_followed(tmp_path: Path) -> None:
    first = network(tmp_path / "first.onnx", 1)
    made = prepare(first, 1).path
    elsewhere = tmp_path / "elsewhere.segments"
    elsewhere.write_bytes(made.read_bytes())
    note = store.artefacts_directory() / "skeletons" / skeleton_of(first)
    others = (
        ["../../elsewhere.segments", "x"],
        [str(elsewhere), "x"],
        [7, "x"],
        "x",
        ["y.segments"],
    )
    note.write_text(json.dumps(others))
    assert load(network(tmp_path / "next.onnx", 2)).origin == "model"


def test_a_recipe_follows_the_order_and_precision_of_the_fusions() -> None:
    floats = {
        "w": np.arange(10 * 3 * 2 * 2, dtype=np.float32).reshape(10, 3, 2, 2),
        "b": np.arange(10, dtype=np.float32),
        "s": np.full(10, 2, np.float32),
    }
    times = Fold("Mul", ("s",))
    bias = follow(Recipe("w", "b", (times, Fold("Add", ("b",))), is_bias=True), floats)
    np.testing.assert_array_equal(bias.view(np.float32), floats["b"] * 3)
    doubled, again = (follow(Recipe("w", folds=(times,)), floats) for _ in range(2))
    assert not np.may_share_memory(doubled, again)
    np.testing.assert_array_equal(doubled.view(np.float32), floats["w"].reshape(-1) * 2)
    padded = follow(Recipe("b", layout=(16,)), floats).view(np.float32)
    np.testing.assert_array_equal(padded, [*range(10), *[0] * 6])
    blocked = follow(Recipe("w", folds=(times,), layout=(8, 1)), floats).view(np.float32)
    blocks = blocked.reshape(2, 1, 2, 2, 8, 8)
    for channel, inner, row, column in ((0, 0, 0, 0), (9, 2, 1, 0), (7, 1, 1, 1)):
        value = blocks[channel // 8, 0, row, column, inner, channel % 8]
        assert value == 2 * floats["w"][channel, inner, row, column]
    assert not blocks[1, ..., 2:].any()
    assert follow(Recipe("w"), floats).base is not None  # nothing is copied
    with pytest.raises(KeyError):
        follow(Recipe("none"), floats)


@pytest.mark.parametrize(
    "recipe",
    [
        ["w1", "", [["Mul", ["gamma1"], 10**400]], False, []],
        ["w1", "", [], False, [math.inf]],
        ["w1", "", [], False, [2**70]],
    ],
)
def test_a_recipe_of_a_number_that_no_computation_takes_is_an_unusable_form(
    tmp_path: Path, recipe: list[object]
) -> None:
    made = prepare(network(tmp_path / "first.onnx", 1), 1).path
    path = network(tmp_path / "next.onnx", 2)
    sibling = siblings.sibling_of(read_model_file(path))
    form = PreparedModel(made, path, 1, sibling=sibling)
    structure = form.kept[0].structure
    assert sibling is not None
    assert structure is not None
    changed = dataclasses.replace(structure, recipes=(recipe,) * len(structure.weights))
    with pytest.raises(ArtefactError, match="the recipe of a weight does not fit"):
        sibling.weights(changed, form.container)


def test_a_model_with_a_broken_weight_is_refused_as_ever(tmp_path: Path) -> None:
    first = network(tmp_path / "first.onnx", 1)
    prepare(first, 1)
    model = onnx.load(first)
    (weight,) = (each for each in model.graph.initializer if each.name == "b5")
    weight.raw_data = weight.raw_data[:-3]
    onnx.save(model, tmp_path / "next.onnx")
    with pytest.raises(InvalidModelError):
        load(tmp_path / "next.onnx")
