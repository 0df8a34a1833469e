"""The places of caches in a model, and what counts as a classification."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.errors import InvalidModelError, InvalidRequestError
from brisk.exits.base_model import load_graph, taps_of, values_at
from brisk.exits.data.collecting import (
    check_classes,
    check_outputs,
    settled_scores,
    with_rows,
)
from brisk.exits.data.samples import Samples
from brisk.exits.model_graph import ExitPoint, exit_points, spread
from brisk.exits.scores import ScoreForm, Tail, find_scores
from brisk.segments.model.graph_names import live_values
from brisk_bench.samples.writer import GraphWriter
from support.exits.cascades import graph_of, images, network, served


def branching() -> GraphWriter:
    """x feeds a branch that is joined three layers later, so that much is live in between."""
    random = np.random.default_rng(0)
    graph = GraphWriter("branching", opset=18)
    x = graph.input("x", "float32", ("batch", 4, 8, 8))
    kernel = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}

    def convolution(value: str) -> str:
        weight = graph.weight(random.normal(0, 0.2, (4, 4, 3, 3)))
        return graph.add("Relu", graph.add("Conv", value, weight, **kernel))

    stem = convolution(x)
    first = convolution(convolution(stem))
    joined = graph.add("Concat", first, stem, axis=1)
    value = graph.add("Flatten", graph.add("GlobalAveragePool", joined))
    value = graph.add("Gemm", value, graph.weight(random.normal(0, 1, (8, 5))))
    graph.output(value, "y", "float32", ("batch", 5))
    return graph


def test_points_are_boundaries_with_one_live_value() -> None:
    graph = graph_of(branching().model())
    points = exit_points(graph, find_scores(graph).position)
    alive = live_values(graph.graph)
    assert points
    for point in points:
        assert alive[point.position] == (point.value,)
    shares = [point.share for point in points]
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] < 1
    stem_is_shared = [index for index, live in enumerate(alive) if len(live) == 2]
    assert stem_is_shared
    assert not {point.position for point in points} & set(stem_is_shared)


def test_what_follows_from_shapes_alone_may_be_live_beside_a_value() -> None:
    model = network(tail="written")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "unk__7"  # as exporters write
    graph = graph_of(model)
    plain = graph_of(network(tail="softmax"))
    points = exit_points(graph, find_scores(graph).position)
    expected = exit_points(plain, find_scores(plain).position)
    images_only = [each for each in expected if plain.types[each.value].rank == 4]
    assert len(images_only) > 3
    assert [graph.types[each.value].shape for each in points[: len(images_only)]] == [
        (graph.batch, *(plain.types[each.value].shape or ())[1:]) for each in images_only
    ]
    alive = live_values(graph.graph)
    assert all(len(alive[point.position]) == 2 for point in points[:3]), "the value and the shape"


def test_a_softmax_that_is_written_out_is_found_by_what_it_makes() -> None:
    for tail, form in (
        ("written", ScoreForm.PROBABILITIES),
        ("plain", ScoreForm.LOGITS),
        ("softmax", ScoreForm.PROBABILITIES),
    ):
        graph = graph_of(network(tail=tail))
        scores = find_scores(graph)
        base = load_graph(graph, taps=taps_of((), scores, graph))
        settled = settled_scores(base, scores, Samples({"image": images(40)}))
        assert settled.form is form
        assert settled.is_certain is (form is ScoreForm.PROBABILITIES)


def test_a_value_of_unknown_first_size_is_an_exit_where_a_run_shows_its_rows() -> None:
    """One is [8, rows, ...] by a shape that nobody can infer, its neighbours [rows, ...]."""
    graph = GraphWriter("turned", opset=18)
    image = graph.input("image", "float32", ("batch", 8, 12, 12))
    shape = graph.add("Shape", image)
    turned = graph.add("Gather", shape, graph.integers(1, 0, 2, 3))
    turned = graph.add("Mul", turned, graph.add("Sign", graph.add("Abs", shape)))
    before = graph.add("MaxPool", image, kernel_shape=[1, 1])
    aside = graph.add("Neg", graph.add("Reshape", before, turned))
    back = graph.add("Sin", graph.add("Reshape", aside, shape))
    value = graph.add("Flatten", graph.add("GlobalMaxPool", back))
    value = graph.add("Gemm", value, graph.weight(np.ones((8, 5))))
    graph.output(value, "y", "float32", ("batch", 5))
    model = graph_of(graph.model())
    scores = find_scores(model)
    points = exit_points(model, scores.position)
    base = load_graph(model, taps=[point.value for point in points])
    rows = Samples({"image": np.ones((5, 8, 12, 12), np.float32)})
    shapes = {
        each.value: values.shape
        for each in points
        for values in [values_at(base, points, rows.inputs)[each.value]]
    }
    assert {shape[0] for shape in shapes.values()} == {8, 5}
    usable = with_rows(base, points, rows)
    assert usable
    assert {each.value for each in usable} == {
        name for name, shape in shapes.items() if shape[0] == 5
    }


def test_points_are_spread_over_the_time_to_reach_them_most_of_them_early() -> None:
    points = [ExitPoint(position, "v") for position in range(6)]
    assert spread(points, [1.0, 1.1, 1.2, 5.0, 9.0, 10.0], 2) == (2, 3)
    assert spread(points, [1.0, 1.1, 1.2, 5.0, 9.0, 10.0], 9) == (0, 1, 2, 3, 4, 5)


def test_scores_are_what_all_outputs_follow_from() -> None:
    scores = find_scores(graph_of(network(tail="labels")))
    assert (scores.classes, scores.form) == (10, ScoreForm.LOGITS)
    assert find_scores(graph_of(network(tail="labels")), "scores") == scores
    assert scores.is_certain  # the model makes labels of them
    assert find_scores(graph_of(network(tail="softmax"))).form is ScoreForm.PROBABILITIES
    assert not find_scores(graph_of(network(tail="plain"))).is_certain


def test_the_rest_of_an_answer_is_computed_from_the_scores() -> None:
    model = served()
    expected = model.whole.run({"image": images(3)})
    outputs = Tail(model.whole.graph, model.cascade.scores).finish(expected["scores"])
    assert list(outputs) == list(expected)
    np.testing.assert_array_equal(outputs["label"], expected["label"])


def test_a_softmax_is_known_behind_what_only_moves_its_numbers() -> None:
    graph = GraphWriter("moved", opset=18)
    x = graph.input("x", "float32", ("batch", 4, 1, 1))
    shares = graph.add("Softmax", x, axis=1)
    graph.output(graph.add("Flatten", shares, axis=1), "y", "float32", ("batch", 4))
    assert find_scores(graph_of(graph.model())).form is ScoreForm.PROBABILITIES


def test_an_output_that_needs_more_than_the_scores_is_refused() -> None:
    graph = branching()
    features = graph.add("GlobalAveragePool", "x")
    graph.output(features, "features", "float32", ("batch", 4, 1, 1))
    with pytest.raises(InvalidModelError, match=r"^set brisk_tolerance .*no class scores"):
        find_scores(graph_of(graph.model()))


def pooled() -> tuple[GraphWriter, str]:
    """A graph with features of its input, [batch, 4]: a hidden layer of whatever reads them."""
    graph = GraphWriter("pooled", opset=18)
    x = graph.input("x", "float32", ("batch", 4, 8, 8))
    return graph, graph.add("Flatten", graph.add("GlobalAveragePool", x))


def gemm(graph: GraphWriter, value: str, *sizes: int) -> str:
    return graph.add("Gemm", value, graph.weight(np.ones(sizes)))


def test_a_hidden_layer_is_not_taken_for_scores_of_a_single_number() -> None:
    """An early answer would put its own hidden values through the model's last layers."""
    graph, value = pooled()
    value = gemm(graph, gemm(graph, value, 4, 5), 5, 1)
    graph.output(value, "age", "float32", ("batch", 1))
    with pytest.raises(InvalidModelError, match=r"no class scores that all its outputs \(age\)"):
        find_scores(graph_of(graph.model()))


def test_a_number_that_is_reckoned_from_shares_is_no_class() -> None:
    graph, value = pooled()
    shares = graph.add("Softmax", gemm(graph, value, 4, 5), axis=1)
    ages = graph.add("Mul", shares, graph.weight(np.arange(5)))
    expected = graph.add("ReduceSum", ages, graph.integers(1), keepdims=0)
    graph.output(expected, "age", "float32", ("batch",))
    with pytest.raises(InvalidModelError, match=r"no class scores that all its outputs \(age\)"):
        find_scores(graph_of(graph.model()))


def test_what_two_heads_read_are_no_scores_though_one_of_them_classifies() -> None:
    graph, value = pooled()
    shares = graph.add("Softmax", gemm(graph, value, 4, 5), axis=1)
    graph.output(shares, "kinds", "float32", ("batch", 5))
    graph.output(gemm(graph, value, 4, 4), "box", "float32", ("batch", 4))
    with pytest.raises(InvalidModelError, match=r"all its outputs \(kinds, box\) follow"):
        find_scores(graph_of(graph.model()))


def test_a_label_and_how_likely_it_is_follow_from_scores() -> None:
    graph, value = pooled()
    shares = graph.add("Softmax", gemm(graph, value, 4, 5), axis=1)
    axes = graph.integers(1)
    graph.output(graph.add("ArgMax", shares, axis=1), "label", "int64", ("batch", 1))
    likely = graph.add("ReduceMax", shares, axes, keepdims=0)
    graph.output(likely, "likely", "float32", ("batch",))
    scores = find_scores(graph_of(graph.model()))
    assert (scores.value, scores.form) == (shares, ScoreForm.PROBABILITIES)


@pytest.mark.parametrize(("output", "told"), [("most", r"\[\] for 2"), ("codes", r"\[3\] for 2")])
def test_an_output_without_rows_is_refused_since_rows_could_not_be_put_together(
    output: str, told: str
) -> None:
    graph, value = pooled()
    shares = graph.add("Softmax", gemm(graph, value, 4, 3), axis=1)
    graph.output(shares, "kinds", "float32", ("batch", 3))
    if output == "most":
        graph.output(graph.add("ReduceMax", shares, keepdims=0), "most", "float32", ())
    else:
        codes = graph.add("Identity", graph.weight(np.arange(3)))
        graph.output(codes, "codes", "int64", (3,))
    model = graph_of(graph.model())
    assert find_scores(model).classes == 3
    samples = Samples({"x": np.zeros((4, 4, 8, 8), np.float32)})
    with pytest.raises(InvalidModelError, match=f"output '{output}' of .* has shape {told} rows"):
        check_outputs(load_graph(model), samples)


def test_a_scalar_of_a_model_of_one_row_is_one_of_each() -> None:
    graph = GraphWriter("one", opset=18)
    x = graph.input("x", "float32", (1, 4))
    shares = graph.add("Softmax", gemm(graph, x, 4, 5), axis=1)
    graph.output(shares, "kinds", "float32", (1, 5))
    label = graph.add("Squeeze", graph.add("ArgMax", shares, axis=1))
    graph.output(label, "label", "int64", ())
    base = load_graph(graph_of(graph.model()))
    rows = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    check_outputs(base, Samples({"x": rows}))
    values = values_at(base, (), {"x": rows})
    np.testing.assert_array_equal(values["label"], values["kinds"].argmax(1))


def test_a_segmentation_is_refused() -> None:
    graph = GraphWriter("segmentation", opset=18)
    x = graph.input("x", "float32", ("batch", 4, 8, 8))
    weight = graph.weight(np.zeros((3, 4, 1, 1)))
    graph.output(graph.add("Conv", x, weight), "masks", "float32", ("batch", 3, 8, 8))
    with pytest.raises(
        InvalidModelError, match=r"^set brisk_tolerance in the entry .*no class scores"
    ):
        find_scores(graph_of(graph.model()))


def test_answers_as_even_as_an_embeddings_are_refused_unless_named() -> None:
    graph = graph_of(network(tail="plain"))
    even = np.full((50, 10), 0.1, np.float32)
    with pytest.raises(InvalidModelError, match=r"does not look like class scores.*--output"):
        check_classes(even, find_scores(graph), "small")
    check_classes(even, find_scores(graph, "scores"), "small")
    peaked = np.eye(10, dtype=np.float32)
    check_classes(peaked, find_scores(graph), "small")


def test_values_of_which_the_same_one_is_always_the_greatest_are_refused_unless_named() -> None:
    """The corners of a box in pixels: a softmax of them is as sure as can be, and of one class."""
    graph = graph_of(network(tail="plain"))
    scores = find_scores(graph)
    teacher = np.eye(10, dtype=np.float32)[np.where(np.arange(1000) < 950, 3, 5)]
    words = r"95% of the data have one class, expected below 95%\. Of values, brisk_tolerance"
    with pytest.raises(InvalidRequestError, match=words):
        check_classes(teacher, scores, "small")
    check_classes(teacher, find_scores(graph, "scores"), "small")
    check_classes(teacher[1:], scores, "small")
    labelled = find_scores(graph_of(network(tail="labels")))
    check_classes(teacher, labelled, "small", needs_classes=True)
    with pytest.raises(InvalidModelError, match="'scores' of model 'small' may be values"):
        check_classes(teacher[1:], scores, "small", needs_classes=True)
