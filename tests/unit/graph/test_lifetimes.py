"""Values die after their last reader, once, and the check notices when they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brisk.graph.program import Node
from brisk.graph.reader import build_program, last_use_table
from support.models.graph_models import model
from support.models.graph_oracle import check_integrity


def layer(*inputs: str, makes: str) -> Node:
    return Node("Sum", inputs, (makes,))


def test_each_value_dies_behind_its_last_reader() -> None:
    layers = [layer("x", makes="a"), layer("a", "w", makes="b"), layer("a", "b", makes="y")]
    assert last_use_table(layers, ["x"], ["y"]) == (("x",), (), ("a", "b"))


def test_outputs_never_die_though_they_are_read() -> None:
    layers = [layer("x", makes="a"), layer("a", makes="y")]
    assert last_use_table(layers, ["x"], ["a", "y"]) == (("x",), ())


def test_what_nobody_reads_dies_at_once() -> None:
    layers = [layer("x", makes="a"), layer("x", makes="y")]
    assert last_use_table(layers, ["x", "unread"], ["y"]) == (("unread", "a"), ("x",))


def test_a_broken_program_is_noticed() -> None:
    program = build_program(model("g (float[4] x) => (y) {a = Relu(x) b = Exp(a) y = Add(a, b)}"))
    check_integrity(program)
    freed_early = replace(program, last_use=(("x", "a"), (), ("b",)))
    with pytest.raises(AssertionError, match="reads freed 'a'"):
        check_integrity(freed_early)
    backwards = replace(program, layers=program.layers[::-1])
    with pytest.raises(AssertionError, match="reads undefined 'a'"):
        check_integrity(backwards)
