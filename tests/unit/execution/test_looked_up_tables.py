"""Embedding tables of prepared starts: only rows that are read are verified, damage or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from brisk.artefacts.container import Container
from brisk.errors import InvalidRequestError
from brisk.execution.loading import load_program
from brisk.execution.preparation import prepare
from brisk.execution.serial import run_serially
from brisk.execution.starting import StartingProgram, start_program
from brisk.execution.tables import LEAST_BYTES, RowLookUp
from brisk.execution.warming import warm_up
from brisk.graph.reader import read_program
from unit.execution.starting_models import CPU, Example, damage
from unit.graph.graph_models import model, random

ROWS, WIDTH = 1100, 256
PLACES = torch.tensor([[3, 5, -1], [1099, 3, 600]])
FAR_ROW = 300
"""None of the example's places are near it."""


@pytest.fixture
def example(tmp_path: Path) -> Example:
    text = """g (int64[N,3] places) => (float[N,3,8] y) {
    e = Gather (table, places)
    y = MatMul (e, w)
    }"""
    made = model(text, table=random(ROWS, WIDTH, seed=1), w=random(WIDTH, 8, seed=2))
    (tmp_path / "1").mkdir()
    path = tmp_path / "1" / "model.onnx"
    onnx.save(made, str(path))
    inputs = {"places": PLACES}
    expected = run_serially(load_program(read_program(path), CPU), inputs)
    return Example(path, inputs, expected)  # type: ignore[arg-type]  # tensors all


@pytest.fixture
def artefact(example: Example) -> Path:
    assert ROWS * WIDTH * 4 >= LEAST_BYTES
    return prepare(example.path, CPU, 2).path


def start(example: Example, artefact: Path, rejected: list[str]) -> StartingProgram:
    return start_program(example.path, CPU, 2, artefact, lambda error: rejected.append(str(error)))


def answer(example: Example, starting: StartingProgram) -> None:
    example.check(run_serially(starting.loaded, example.inputs))


def is_guarded(starting: StartingProgram) -> bool:
    return any(isinstance(layer.kernel, RowLookUp) for layer in starting.table.current())


def damage_row(artefact: Path, row: int) -> None:
    """A bit of the table's row."""
    container = Container(artefact)
    place = max(map(container.place, range(len(container))), key=lambda place: place.size)
    assert place.size == ROWS * WIDTH * 4
    damage(artefact, artefact.read_bytes(), place.offset + row * WIDTH * 4 + 17)


def test_rows_are_verified_as_they_are_read_and_the_table_when_it_is_warm(
    example: Example, artefact: Path
) -> None:
    rejected: list[str] = []
    starting = start(example, artefact, rejected)
    answer(example, starting)
    assert is_guarded(starting)
    assert warm_up(starting, lambda: True)
    assert not is_guarded(starting)
    answer(example, starting)
    assert rejected == []


def test_damage_elsewhere_is_found_when_the_table_is_warm(
    example: Example, artefact: Path
) -> None:
    damage_row(artefact, FAR_ROW)
    rejected: list[str] = []
    starting = start(example, artefact, rejected)
    answer(example, starting)
    assert rejected == []
    assert warm_up(starting, lambda: True)
    assert len(rejected) == 1
    answer(example, starting)


def test_a_damaged_row_is_never_computed_with(example: Example, artefact: Path) -> None:
    damage_row(artefact, 1099)
    rejected: list[str] = []
    starting = start(example, artefact, rejected)
    for _ in range(2):
        answer(example, starting)
    assert len(rejected) == 1
    assert "a page of it is damaged" in rejected[0]
    assert warm_up(starting, lambda: True)
    answer(example, starting)


def test_a_place_too_far_is_an_error_and_the_next_request_has_its_answer(
    example: Example, artefact: Path
) -> None:
    starting = start(example, artefact, [])
    for place in (ROWS, -ROWS - 1):
        with pytest.raises(InvalidRequestError, match="index out of range"):
            run_serially(starting.loaded, {"places": torch.tensor([[0, place, 1]])})
    answer(example, starting)


def test_places_of_32_bits_are_looked_up_as_well(tmp_path: Path) -> None:
    text = "g (int32[N] places) => (float[N,256] y) { y = Gather (table, places) }"
    made = model(text, table=random(ROWS, WIDTH, seed=1))
    path = tmp_path / "model.onnx"
    onnx.save(made, str(path))
    inputs = {"places": torch.tensor([7, -2], dtype=torch.int32)}
    starting = start_program(path, CPU, 2, prepare(path, CPU, 2).path, pytest.fail)
    (found,) = run_serially(starting.loaded, inputs).values()
    table = random(ROWS, WIDTH, seed=1)
    np.testing.assert_array_equal(np.asarray(found), table[[7, -2]])
