"""Starts from artefacts and from models: the same answers, whatever is wrong with the former."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from brisk.artefacts import store
from brisk.artefacts.container import Container
from brisk.errors import ArtefactError, InvalidModelError, UnavailableError
from brisk.execution.artefact import find_artefact, open_artefact
from brisk.execution.joining import executor_absence
from brisk.execution.preparation import is_prepared, prepare
from brisk.execution.serial import run_serially
from brisk.execution.starting import StartingProgram, start_program
from brisk.execution.warming import is_settled, warm_up
from brisk.graph.mapping import make_private, map_file
from unit.execution.starting_models import CPU, Example, damage, small_network

pytestmark = pytest.mark.usefixtures("private_cache")

THREADS = 2


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return small_network(tmp_path / "entry")


@pytest.fixture
def artefact(example: Example) -> Path:
    return prepare(example.path, CPU, THREADS).path


def start(
    example: Example, artefact: Path | None, threads: int = THREADS
) -> tuple[StartingProgram, list[str]]:
    rejected: list[str] = []
    starting = start_program(
        example.path, CPU, threads, artefact, lambda error: rejected.append(str(error))
    )
    return starting, rejected


def check_answers(example: Example, starting: StartingProgram) -> None:
    """With lanes, twice: while they load, and when all is loaded."""
    lanes = starting.start_lanes(THREADS)
    example.check(run_serially(starting.loaded, example.inputs))
    assert starting.table.wait(30)
    example.check(run_serially(starting.loaded, example.inputs))
    lanes.close()


def test_an_artefact_lies_in_the_private_cache_and_is_found(
    example: Example, artefact: Path, tmp_path: Path
) -> None:
    directory = store.artefact_directory(example.path)
    assert artefact.parent == directory
    assert directory.is_relative_to(tmp_path / "cache")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (artefact, directory)] == [0o600, 0o700]
    assert find_artefact(example.path, CPU, THREADS) == artefact


def test_a_prepared_start_answers_as_the_model_does(example: Example, artefact: Path) -> None:
    starting, rejected = start(example, artefact)
    assert starting.artefact is not None
    assert not starting.wants_artefact
    check_answers(example, starting)
    assert rejected == []


def test_a_start_without_artefact_answers_as_the_model_does(example: Example) -> None:
    starting, _ = start(example, None)
    assert starting.wants_artefact
    check_answers(example, starting)


def test_the_executor_alone_loads_what_it_needs(example: Example, artefact: Path) -> None:
    starting, _ = start(example, artefact)
    example.check(run_serially(starting.loaded, example.inputs))
    assert starting.table.is_whole
    assert starting.table.stolen == len(starting.table)


def test_warm_layers_take_over_with_the_same_answers(example: Example, artefact: Path) -> None:
    for file in (artefact, None):
        starting, _ = start(example, file)
        example.check(run_serially(starting.loaded, example.inputs))
        warm = starting.source.warm_layers()
        layers = {index: starting.source.load_warm(index) for index in warm}
        present = enumerate(starting.table.current())
        joined = starting.source.join([layers.get(index, layer) for index, layer in present])
        assert joined is not None
        starting.table.switch(layers, joined)
        example.check(run_serially(starting.loaded, example.inputs))


def test_bits_stay_and_threads_do_not_change_them_once_kernels_are_settled(
    example: Example, artefact: Path
) -> None:
    assert executor_absence() == ""
    for file in (artefact, None):
        starting, _ = start(example, file)
        run_serially(starting.loaded, example.inputs)
        assert not is_settled(starting)
        assert warm_up(starting, lambda: True)
        assert is_settled(starting)
        found = set()
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            found.add(run_serially(starting.loaded, example.inputs)["y"].numpy().tobytes())
        assert len(found) == 1


def test_a_program_whose_warm_kernels_cannot_be_loaded_is_settled(example: Example) -> None:
    starting, _ = start(example, None)
    run_serially(starting.loaded, example.inputs)

    def refuse() -> bool:
        raise InvalidModelError("no kernel")

    with pytest.raises(InvalidModelError, match="no kernel"):
        warm_up(starting, refuse)
    assert is_settled(starting)


def test_other_batches_are_computed_from_kept_weights(example: Example, artefact: Path) -> None:
    more = {"x": torch.cat([example.inputs["x"]] * 3)}
    starting, _ = start(example, artefact)
    outputs = run_serially(starting.loaded, more)
    torch.testing.assert_close(
        outputs["y"], example.expected["y"].expand(3, -1), rtol=1e-4, atol=1e-5
    )


def test_damage_in_any_blob_is_noticed_and_the_model_used(
    example: Example, artefact: Path
) -> None:
    whole = artefact.read_bytes()
    container = Container(artefact)
    needed = {blob for layer in open_artefact(artefact, example.path, CPU, THREADS).layers
              for blob in layer.blobs}  # fmt: skip
    for number in sorted(needed):
        if container.size(number) == 0:
            continue
        damage(artefact, whole, container.place(number).offset + container.size(number) // 2)
        starting, rejected = start(example, artefact)
        check_answers(example, starting)
        assert len(rejected) == 1
        assert "is damaged" in rejected[0]
        assert starting.wants_artefact
        assert not is_prepared(example.path, CPU, THREADS)


@pytest.mark.parametrize("length", [0, 50, 300, 5000, -1])
def test_an_artefact_cut_off_is_ignored(example: Example, artefact: Path, length: int) -> None:
    artefact.write_bytes(artefact.read_bytes()[:length])
    starting, rejected = start(example, artefact)
    assert starting.artefact is None
    assert len(rejected) == 1
    check_answers(example, starting)


def test_a_changed_model_is_noticed_though_its_size_is_the_same(
    example: Example, artefact: Path, tmp_path: Path
) -> None:
    changed = onnx.load(str(example.path))
    weight = next(tensor for tensor in changed.graph.initializer if tensor.name == "w5")
    raw = np.frombuffer(weight.raw_data, np.float32) * np.float32(-1)
    weight.raw_data = raw.tobytes()
    onnx.save(changed, str(example.path))
    starting, rejected = start(example, artefact)
    assert starting.artefact is None
    assert "the model has changed" in rejected[0]
    outputs = run_serially(starting.loaded, example.inputs)
    assert not torch.allclose(outputs["y"], example.expected["y"])  # type: ignore[arg-type]


def test_a_copied_entry_is_recognised_by_its_content(
    example: Example, artefact: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(example.path.parents[1], copy)
    path = copy / "1" / "model.onnx"
    moved = Example(path, example.inputs, example.expected)
    found = store.artefact_directory(path) / artefact.name
    shutil.copytree(artefact.parent, found.parent)
    assert find_artefact(path, CPU, THREADS) == found
    starting, rejected = start(moved, found)
    assert rejected == []
    assert starting.artefact is not None


def test_external_data_is_part_of_the_identity(tmp_path: Path) -> None:
    example = small_network(tmp_path / "entry")
    onnx.save(
        onnx.load(str(example.path)),
        str(example.path),
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    artefact = prepare(example.path, CPU, THREADS).path
    assert start(example, artefact)[0].artefact is not None
    data = example.path.parent / "weights.bin"
    data.write_bytes(bytes(len(data.read_bytes())))
    assert "the model has changed" in start(example, artefact)[1][0]


def test_another_number_of_cores_is_another_machine(example: Example, artefact: Path) -> None:
    assert find_artefact(example.path, CPU, THREADS + 1) is None
    with pytest.raises(ArtefactError, match="another machine"):
        open_artefact(artefact, example.path, CPU, THREADS + 1)


def test_an_entry_that_is_prepared_stays_as_it_is(example: Example) -> None:
    """Triton takes a newer file in it for a changed model."""
    version = example.path.parent
    before = {path: path.stat() for path in (version, *version.rglob("*"))}
    prepare(example.path, CPU, THREADS)
    assert {path: path.stat() for path in (version, *version.rglob("*"))} == before


def test_what_lies_in_an_entry_is_never_taken_for_an_artefact(
    example: Example, artefact: Path
) -> None:
    """Whoever writes to the repository decides what is computed, not what is mapped."""
    beside = example.path.parent / ".brisk"
    beside.mkdir()
    artefact.rename(beside / artefact.name)
    assert find_artefact(example.path, CPU, THREADS) is None


def test_a_state_note_that_lies_is_overruled_by_nothing_but_its_stamps(
    example: Example, artefact: Path
) -> None:
    note = artefact.with_suffix(".state")
    note.write_text(json.dumps({"digests": {}, "stamps": []}))
    assert start(example, artefact)[1] == []
    note.write_text("not JSON")
    assert start(example, artefact)[1] == []


def test_who_comes_second_leaves_the_building_to_the_first(example: Example) -> None:
    directory = store.writable_directory(example.path)
    with store.building(directory) as is_ours:
        assert is_ours
        with pytest.raises(UnavailableError, match="another process prepares"):
            prepare(example.path, CPU, THREADS)
    assert prepare(example.path, CPU, THREADS).path.is_file()


def test_a_full_disk_leaves_nothing_behind_and_the_model_usable(example: Example) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            prepare(example.path, CPU, THREADS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(store.artefact_directory(example.path).iterdir()) == []
    starting, rejected = start(example, find_artefact(example.path, CPU, THREADS))
    assert rejected == []
    check_answers(example, starting)


def test_a_model_that_changes_while_it_is_prepared_gets_no_artefact(
    example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change_it() -> None:
        os.utime(example.path)

    with pytest.raises(InvalidModelError, match="has changed while it was prepared"):
        prepare(example.path, CPU, THREADS, breathe=change_it)
    assert find_artefact(example.path, CPU, THREADS) is None


def test_a_mapped_model_made_private_no_longer_shows_what_is_written_into_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 64)
    view = map_file(path)
    assert make_private() >= len(view)
    with path.open("r+b") as file:
        file.write(bytes(len(view)))
    assert bytes(view) == bytes(range(256)) * 64
