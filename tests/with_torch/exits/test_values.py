"""What counts as a model's own answer: of values, within a tolerance, in each of its outputs."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

from brisk.errors import InvalidModelError
from brisk.exits.scores import ScoreForm, Scores, agreeing, all_agreeing, find_values
from brisk.settings import Tolerance, tolerance
from brisk_bench.samples.writer import GraphWriter
from support.exits.cascades import CLASSES, graph_of, network
from support.exits.texts import WIDTH, text_encoder

COSINE = tolerance("cosine 0.98")


def scores_of(limit: Tolerance | None) -> Scores:
    form = ScoreForm.LOGITS if limit is None else ScoreForm.VALUES
    return Scores("scores", 3, 2, form, True, limit)


@pytest.mark.parametrize(
    ("text", "ours", "theirs", "agrees"),
    [
        ("cosine 0.9", [1.0, 0.0], [2.0, 0.1], True),
        ("cosine 0.9", [1.0, 0.0], [1.0, 1.0], False),
        ("cosine 0.9", [1.0, 0.0], [-1.0, 0.0], False),
        ("cosine 0.9", [0.0, 0.0], [0.0, 0.0], True),
        ("cosine 0.9", [0.0, 0.0], [1.0, 0.0], False),
        ("cosine 0.9", [math.nan, 0.0], [1.0, 0.0], False),
        ("absolute 0.1", [1.0, 5.0], [1.09, 4.91], True),
        ("absolute 0.1", [1.0, 5.0], [1.0, 5.11], False),
        ("absolute 0.1", [math.nan, 5.0], [math.nan, 5.0], False),
        ("absolute 0.1", [math.inf, 5.0], [math.inf, 5.0], False),
        ("", [1.0, 2.0], [0.4, 0.6], True),
        ("", [2.0, 1.0], [0.4, 0.6], False),
        ("", [2.0, 1.0], [math.nan, math.nan], False),
    ],
)
def test_a_row_agrees_where_it_is_within_the_tolerance(
    text: str, ours: list[float], theirs: list[float], agrees: bool
) -> None:
    scores = scores_of(tolerance(text) if text else None)
    verdicts = agreeing(np.array([ours], np.float32), np.array([theirs], np.float32), scores)
    assert verdicts.tolist() == [agrees]


def test_of_several_outputs_each_keeps_to_the_tolerance() -> None:
    labelled = find_values(graph_of(network(tail="labels")), tolerance("absolute 0.1"))
    assert (labelled.value, labelled.others, labelled.rank) == ("scores", ("label",), 2)
    values = find_values(graph_of(network(tail="softmax")), COSINE)
    assert (values.value, values.classes, values.form) == ("scores", CLASSES, ScoreForm.VALUES)


def test_a_vector_for_each_word_is_a_value_too() -> None:
    scores = find_values(graph_of(text_encoder()), COSINE)
    assert (scores.value, scores.others) == ("words_out", ("pooled", "count"))
    assert (scores.classes, scores.rank) == (2 * WIDTH, 3)


@pytest.mark.parametrize(
    ("outputs", "limit", "told"),
    [
        ({"y": ("float32", (7, 4))}, "absolute 1", r"has outputs y float32 \[7, 4\]"),
        ({"y": ("int64", ("batch", 4))}, "absolute 1", "one of them float32"),
        ({"y": ("float32", ("batch", 1))}, "cosine 0.9", "of 'y', a single number, a cosine"),
        (
            {"y": ("float32", ("batch", 4)), "z": ("float32", ("batch",))},
            "cosine 0.9",
            "of 'z', a single number, a cosine says nothing",
        ),
    ],
)
def test_outputs_of_which_a_tolerance_says_nothing_are_refused(
    outputs: dict[str, tuple[str, tuple[str | int, ...]]], limit: str, told: str
) -> None:
    graph = GraphWriter("several", opset=17)
    value = graph.input("x", "float32", ("batch", 4))
    for name, (kind, shape) in outputs.items():
        made = value if shape[-1] == 4 else graph.add("ReduceMax", value, axes=[1])
        made = graph.add("Squeeze", made, graph.integers(1)) if len(shape) == 1 else made
        to = onnx.TensorProto.INT64 if kind == "int64" else onnx.TensorProto.FLOAT
        graph.output(graph.add("Cast", made, to=to), name, kind, shape)
    with pytest.raises(InvalidModelError, match=told):
        find_values(graph_of(graph.model()), tolerance(limit))


@pytest.mark.parametrize(
    ("ours", "theirs", "agrees"),
    [
        ([[[1.0, 0.0], [0.0, 2.0]]], [[[2.0, 0.0], [0.0, 1.0]]], True),
        ([[[1.0, 0.0], [0.0, 2.0]]], [[[2.0, 0.0], [1.0, 0.0]]], False),
        ([[1.0, 0.0, 0.0]], [[1.0, 0.0]], False),
    ],
)
def test_the_cosine_is_that_of_each_vector(
    ours: list[object], theirs: list[object], agrees: bool
) -> None:
    one, other = np.array(ours, np.float32), np.array(theirs, np.float32)
    assert agreeing(one, other, scores_of(COSINE)).tolist() == [agrees]


def test_integers_are_equal_or_they_differ() -> None:
    scores = scores_of(tolerance("absolute 5"))
    first, second = np.array([1, 2, 3]), np.array([1, 3, 3])
    assert agreeing(first, second, scores).tolist() == [True, False, True]
    far = np.array([0.0, 0.0, 9.0], np.float32)
    verdicts = all_agreeing((first, np.zeros(3, np.float32)), (second, far), scores)
    assert verdicts.tolist() == [True, False, False]
