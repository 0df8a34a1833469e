"""Runs of small layers in artefacts: what starts do with them, and what may be wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from brisk.artefacts.container import Container
from brisk.errors import ArtefactError
from brisk.execution.artefact import Artefact, open_artefact
from brisk.execution.frame import Frame
from brisk.execution.loading import load_program
from brisk.execution.preparation import prepare
from brisk.execution.serial import run_serially
from brisk.execution.starting import StartingProgram, start_program
from brisk.execution.warming import warm_up
from brisk.graph.reader import read_program
from brisk.native.run import SmallRun
from brisk.solutions.catalogue import reference_catalogue
from unit.execution.starting_models import CPU, damage
from unit.native.test_small_runs import Network, by_definition

pytestmark = pytest.mark.usefixtures("private_cache", "threads_restored")

SIZES = (16, 24, 24)
LARGE = 3
"""The layer that is the compiled library's, in the middle of the first run."""
ALONE = 5


MOST_ROWS = 24
"""More than the program's runs take."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return build(tmp_path)


def build(folder: Path) -> Path:
    """Two runs of small layers around one whose filters lie too far apart for a step."""
    network = Network(SIZES, 9)
    network.add("Conv", network.weight(32, 16, 1, 1), network.weight(32))
    network.add("Relu")
    network.add("Conv", network.weight(32, 1, 5, 5), pads=[2, 2, 2, 2], group=32)
    network.add("Sigmoid")
    network.add("MaxPool", kernel_shape=[1, 1])
    network.add("Conv", network.weight(256, 32, 1, 1), network.weight(256))  # the library's
    network.add("Relu")
    network.add("Conv", network.weight(16, 256, 1, 1))
    network.add("Conv", network.weight(16, 4, 3, 3), pads=[1, 1, 1, 1], group=4)
    network.add("Conv", network.weight(8, 16, 1, 1))
    network.add("GlobalAveragePool")
    network.add("Flatten")
    network.add("Gemm", network.weight(5, 8), transB=1)
    return network.save(folder)


ROWS = torch.from_numpy(np.random.default_rng(5).standard_normal((MOST_ROWS, *SIZES), np.float32))


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """Of ``ROWS``, by the operators' definition, which takes seconds."""
    file = build(tmp_path_factory.mktemp("oracle"))
    oracle = load_program(read_program(file), CPU, reference_catalogue())
    (value,) = by_definition(oracle, ROWS).values()
    return value


def check(wanted: torch.Tensor, starting: StartingProgram, *batches: int) -> None:
    for batch in batches or (1, 2, MOST_ROWS):
        assert batch <= MOST_ROWS
        (found,) = run_serially(starting.loaded, {"x": ROWS[:batch]}).values()
        torch.testing.assert_close(found, wanted[:batch], rtol=1e-3, atol=1e-4)


def start(file: Path, path: Path, *, laned: bool = True) -> tuple[StartingProgram, list[str]]:
    rejected: list[str] = []
    starting = start_program(file, CPU, 2, path, lambda error: rejected.append(str(error)))
    if laned:
        lanes = starting.start_lanes(2)
        assert starting.table.wait(30)
        lanes.close()
    return starting, rejected


def runs_of(starting: StartingProgram) -> list[bool]:
    return [isinstance(layer.kernel, SmallRun) for layer in starting.table.current()]


def opened(file: Path, path: Path) -> Artefact:
    return open_artefact(path, file, CPU, 2)


@pytest.mark.parametrize("is_measured", [True, False])
def test_a_start_runs_what_was_joined_at_its_preparation(
    file: Path, wanted: torch.Tensor, is_measured: bool
) -> None:
    path = prepare(file, CPU, 2, is_measured=is_measured).path
    artefact = opened(file, path)
    assert artefact.run_count == 2
    members = set(artefact.run_of)
    assert LARGE in members
    assert ALONE not in members
    for laned in (True, False):
        starting, rejected = start(file, path, laned=laned)
        check(wanted, starting)
        assert rejected == []
        firsts = [index for index, is_run in enumerate(runs_of(starting)) if is_run]
        assert firsts == [0, ALONE + 1]
        for index in members - set(firsts):
            layer = starting.table[index]
            assert (layer.reads, layer.writes, layer.dead) == ((), (), ())


def test_members_stand_alone_again_once_it_is_warm_and_runs_are_not_made_again(
    file: Path, wanted: torch.Tensor
) -> None:
    starting, _ = start(file, prepare(file, CPU, 2).path)
    kernels = [layer.kernel for layer in starting.table.current()]
    assert warm_up(starting, lambda: True)
    assert not any(runs_of(starting))
    joined = starting.table.joined
    assert joined is not None
    assert joined.wider is not None
    kept = [kernel for kernel in kernels if isinstance(kernel, SmallRun)]
    found = [each.kernel for each in joined.layers if isinstance(each.kernel, SmallRun)]
    assert found == kept
    check(wanted, starting, 1, joined.most_images + 1, joined.wider.most_images + 1)


def test_frames_stop_at_exits_once_it_is_warm(file: Path, wanted: torch.Tensor) -> None:
    """Between two layers that were one run at the start."""
    starting, _ = start(file, prepare(file, CPU, 2).path)
    assert warm_up(starting, lambda: True, (1,))
    x = ROWS[:1]
    frame = Frame(starting.loaded, {"x": x})
    frame.step()
    assert frame.layers_done == 1
    slot = starting.table.current()[0].writes[0]
    hidden = frame.value_at(slot)
    assert isinstance(hidden, torch.Tensor)
    assert hidden.shape == (1, 32, 24, 24)
    check(wanted, starting)


def test_weights_of_the_librarys_layers_are_kept_once(file: Path) -> None:
    path = prepare(file, CPU, 2).path
    artefact = opened(file, path)
    tensors = artefact.layers[LARGE].tensors
    assert tensors is not None
    weights = artefact.weights(LARGE)
    assert weights is not None
    starting, _ = start(file, path)
    assert warm_up(starting, lambda: True)
    layer = starting.table.current()[LARGE]
    for name, tensor in weights.items():
        torch.testing.assert_close(layer.weights[name], tensor, rtol=0, atol=0)
    sizes = sum(artefact.container.size(number) for number in range(len(artefact.container)))
    model = sum(array.nbytes for array in read_program(file).weights.values())
    assert sizes < 3 * model


def test_a_damaged_run_is_noticed_and_all_of_its_members_stand_alone(
    file: Path, wanted: torch.Tensor
) -> None:
    path = prepare(file, CPU, 2).path
    container = Container(path)
    whole = path.read_bytes()
    for record in container.content["runs"]:
        for blob in record["blobs"]:
            damage(path, whole, container.place(blob).offset + container.size(blob) // 2)
            starting, rejected = start(file, path)
            assert len(rejected) == 1
            assert "is damaged" in rejected[0]
            first, last = record["first"], record["last"]
            assert not any(runs_of(starting)[first : last + 1])
            check(wanted, starting)
            assert warm_up(starting, lambda: True)
            check(wanted, starting)


def test_damage_behind_a_loaded_run_leaves_it_whole(file: Path, wanted: torch.Tensor) -> None:
    """Its members, loaded behind the damage, are empty although the model is read again."""
    path = prepare(file, CPU, 2).path
    artefact = opened(file, path)
    container, blob = artefact.container, artefact.layers[ALONE].blobs[0]
    damage(path, path.read_bytes(), container.place(blob).offset)
    starting, rejected = start(file, path, laned=False)
    table = starting.table
    table[0]  # the first run, then the damage, then its other members
    table[ALONE]
    assert len(rejected) == 1
    check(wanted, starting)
    assert runs_of(starting)[0]
    assert not any(runs_of(starting)[1:])
    assert warm_up(starting, lambda: True)
    check(wanted, starting)


def test_runs_that_do_not_fit_the_budget_are_left_out(file: Path, wanted: torch.Tensor) -> None:
    path = prepare(file, CPU, 2, disk_factor=0.0).path
    assert opened(file, path).run_count == 0
    starting, rejected = start(file, path)
    assert rejected == []
    check(wanted, starting)
    assert warm_up(starting, lambda: True)
    check(wanted, starting)


def test_a_table_of_steps_that_does_not_fit_its_weights_is_refused(file: Path) -> None:
    artefact = opened(file, prepare(file, CPU, 2).path)
    artefact._runs[0]["blobs"][1] = artefact._runs[1]["blobs"][1]
    with pytest.raises(ArtefactError, match="do not fit together"):
        artefact.run(0)
