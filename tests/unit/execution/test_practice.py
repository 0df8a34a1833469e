"""What an idle worker practises is a start like any other."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from brisk.errors import ArtefactError
from brisk.execution import practice
from brisk.execution.loading import load_program
from brisk.execution.practice_network import build_practice, practice_inputs
from brisk.execution.serial import run_serially
from brisk.execution.starting import StartingProgram, start_program
from brisk.graph.reader import build_program
from brisk.solutions.catalogue import reference_catalogue
from brisk.solutions.values import from_numpy

CPU = torch.device("cpu")


def test_a_start_from_the_file_and_one_from_an_artefact_are_practised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[StartingProgram] = []

    def start(*arguments: object) -> StartingProgram:
        started.append(start_program(*arguments))  # type: ignore[arg-type]
        return started[-1]

    monkeypatch.setattr(practice, "start_program", start)
    thread = threading.Thread(target=practice.practise, args=(2,))  # it computes alone afterwards
    thread.start()
    thread.join(60)
    from_file, from_artefact = started
    assert from_file.artefact is None
    assert from_artefact.artefact is not None
    assert from_file.table.is_whole
    assert from_artefact.table.is_whole


def test_nothing_of_it_stays_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*arguments: object) -> StartingProgram:
        assert list(tmp_path.iterdir())
        raise ArtefactError("damaged")

    monkeypatch.setattr(practice.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(practice, "start_program", fail)
    monkeypatch.setattr(practice, "compute_alone", lambda: None)
    with pytest.raises(ArtefactError, match="damaged"):
        practice.practise(2)
    assert not list(tmp_path.iterdir())


def test_the_network_has_layers_of_many_kinds_with_right_answers() -> None:
    program = build_program(build_practice())
    inputs = {name: from_numpy(array, CPU) for name, array in practice_inputs().items()}
    tuned, plain = (
        load_program(program, CPU, catalogue) for catalogue in (None, reference_catalogue())
    )
    assert len({layer.main.operator for layer in program.layers}) >= 10
    expected = run_serially(plain, inputs)
    for name, value in run_serially(tuned, inputs).items():
        assert isinstance(value, torch.Tensor)
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-4)
