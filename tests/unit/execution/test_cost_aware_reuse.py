"""Reuse where this machine's costs say that it is quicker, and what preparations teach them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.execution import reuse
from brisk.execution.cold import Scheme, start
from brisk.execution.cold_plan import raw_layer
from brisk.execution.machine_costs import (
    NOTHING_KNOWN,
    multiplications,
    read_costs,
    weight_bytes,
)
from brisk.execution.plan import LayerPlan, make_plan
from brisk.execution.preparation import prepare
from brisk.execution.reuse import WORTH_NS, ReusingSource, shared_cache
from brisk.execution.serial import run_serially
from brisk.execution.starting import StartingProgram, start_program
from brisk.execution.warming import warm_up
from brisk.graph.reader import read_program
from brisk.segments.timeline import EventKind
from brisk.solutions.catalogue import default_catalogue
from brisk.solutions.categories import MOST_INSTANCES, CategoryCache, Instance
from brisk.solutions.convolution_general import GeneralConvolution
from unit.execution.starting_models import CPU, Example, small_network, stage_costs


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    shared_cache.cache_clear()
    yield
    shared_cache.cache_clear()


def started(example: Example) -> tuple[StartingProgram, ReusingSource]:
    """Without lanes: the executor waits for every layer. Run once and checked."""
    starting = start_program(example.path, CPU, 2, None, lambda error: pytest.fail(str(error)))
    assert isinstance(starting.source, ReusingSource)
    example.check(run_serially(starting.loaded, example.inputs))
    return starting, starting.source


def layers_of(example: Example) -> tuple[LayerPlan, ...]:
    return make_plan(read_program(example.path), CPU, default_catalogue()).layers


def test_layers_run_on_substitutes_where_loading_costs_most_and_are_warm_afterwards(
    tmp_path: Path,
) -> None:
    example = small_network(tmp_path / "entry")
    stage_costs(load_ns_per_byte=1e6, substitute_ns=2)
    starting, source = started(example)
    assert (source.reused, source.waited) == (3, 0)
    events = starting.recorder.timeline(0).events
    assert sum(event.kind is EventKind.SUBSTITUTE for event in events) == source.reused
    kinds = {layer.solution.name for layer in starting.table.current()}
    assert "general_convolution" in kinds
    assert warm_up(starting, lambda: True)
    names = [layer.solution.name for layer in starting.table.current()]
    assert names == source.solution_names()
    example.check(run_serially(starting.loaded, example.inputs))


def test_layers_wait_where_substitutes_run_longer_than_loading_takes(tmp_path: Path) -> None:
    example = small_network(tmp_path / "entry")
    stage_costs(load_ns_per_byte=1e6, substitute_ns=1e9)
    _, source = started(example)
    assert (source.reused, source.waited) == (0, 4)  # the linear one is laid out at once, too


def test_layers_that_load_quickly_are_not_even_looked_up(tmp_path: Path) -> None:
    example = small_network(tmp_path / "entry")
    stage_costs(load_ns_per_byte=WORTH_NS / 18_000, substitute_ns=1)
    starting, source = started(example)
    assert (source.reused, source.waited) == (1, 0)  # only that with 18 KB of weights
    events = starting.recorder.timeline(0).events
    assert sum(event.kind is EventKind.LOOKUP for event in events) == 1


def test_without_measured_costs_no_layer_is_substituted(tmp_path: Path) -> None:
    example = small_network(tmp_path / "entry")
    _, source = started(example)
    assert (source.reused, source.waited) == (0, 0)


def test_layers_that_nobody_waits_for_are_not_substituted(tmp_path: Path) -> None:
    example = small_network(tmp_path / "entry")
    stage_costs(load_ns_per_byte=1e6, substitute_ns=2)
    starting = start_program(example.path, CPU, 2, None, lambda error: pytest.fail(str(error)))
    starting.table.work(0, "load-0")  # as a lane that is ahead of the first request
    assert isinstance(starting.source, ReusingSource)
    assert starting.source.reused == 0
    example.check(run_serially(starting.loaded, example.inputs))


def test_a_substitute_that_cannot_be_loaded_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room for a kernel")

    example = small_network(tmp_path / "entry")
    stage_costs(load_ns_per_byte=1e6, substitute_ns=2)
    monkeypatch.setattr(GeneralConvolution, "load", fail)
    _, source = started(example)
    assert source.reused == 0


def test_what_one_models_preparation_measured_decides_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reuse, "WORTH_NS", 0)
    prepared = small_network(tmp_path / "prepared")
    assert read_costs(CPU).totals == {}
    prepare(prepared.path, CPU, 2)
    costs = read_costs(CPU)
    convolutions = [each for each in layers_of(prepared) if each.problem.operator == "Conv"]
    for planned in convolutions:
        cold = raw_layer(planned, default_catalogue())
        assert costs.of(cold.solution, cold.problem) is not None
    _, source = started(small_network(tmp_path / "other"))
    assert source.reused + source.waited == 3


def test_a_linear_layer_begins_on_its_own_matrix_unless_the_costs_say_otherwise(
    tmp_path: Path,
) -> None:
    catalogue = default_catalogue()
    layers = layers_of(small_network(tmp_path / "entry"))
    linear = next(each for each in layers if each.problem.operator == "Linear")
    assert raw_layer(linear, catalogue).solution.name == "torch_product"
    for substitute_ns, expected in ((2.0, "torch_product"), (1e6, linear.solution.name)):
        stage_costs(load_ns_per_byte=10, substitute_ns=substitute_ns)
        assert raw_layer(linear, catalogue, read_costs(CPU)).solution.name == expected


def test_costs_are_sums_by_solution_of_which_older_ones_fade(tmp_path: Path) -> None:
    planned = layers_of(small_network(tmp_path / "entry"))[0]
    problem, solution = planned.problem, planned.solution
    assert multiplications(problem) == 16 * 3 * 9 * 24 * 24
    assert weight_bytes(problem) == (16 * 3 * 9 + 16) * 4
    first = NOTHING_KNOWN.pooled([(solution.name, problem, 3000, 600)])
    cost = first.of(solution, problem)
    assert cost is not None
    assert (cost.load, cost.run) == (pytest.approx(3000), pytest.approx(600))
    again = first.pooled([(solution.name, problem, 6000, 600)]).of(solution, problem)
    assert again is not None
    assert again.load == pytest.approx((3000 / 2 + 6000) / 1.5)
    assert first.pooled([]).totals == first.totals


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": [1]}', '{"a": 3}', '{"a": ["x"]}'])
def test_a_file_of_costs_that_is_damaged_counts_as_none(content: str, tmp_path: Path) -> None:
    stage_costs(load_ns_per_byte=1, substitute_ns=1)
    (file,) = (tmp_path / "cache").glob("costs-*.json")
    file.write_text(content)
    found = read_costs(CPU)
    example = small_network(tmp_path / "entry")
    planned = layers_of(example)[0]
    assert found.of(planned.solution, planned.problem) is None
    _, source = started(example)
    assert source.reused == 0


def test_models_of_a_process_share_what_is_loaded(tmp_path: Path) -> None:
    stage_costs(load_ns_per_byte=1e6, substitute_ns=2)
    example = small_network(tmp_path / "entry")
    first = start(example.path, Scheme.BRISK, example.inputs, CPU, 2)
    first.close()
    queries = shared_cache().statistics().queries
    other = small_network(tmp_path / "other")
    second = start(other.path, Scheme.BRISK, other.inputs, CPU, 2)
    other.check(second.outputs)
    second.settle()
    other.check(second.run(other.inputs))
    second.close()
    assert shared_cache().statistics().queries >= queries + second.statistics.queries
    assert second.statistics.queries >= second.statistics.hits


def test_the_cache_forgets_what_was_used_longest_ago_but_no_resident_solution(
    tmp_path: Path,
) -> None:
    catalogue = default_catalogue()
    direct, general = (
        catalogue.named(name) for name in ("onednn_convolution", "general_convolution")
    )
    assert direct is not None
    assert general is not None
    cache = CategoryCache(catalogue.residents())
    for number in range(MOST_INSTANCES + 3):
        cache.add(Instance(direct, number))
    assert Instance(general, ()) in cache
    assert Instance(direct, 3) not in cache
    assert Instance(direct, MOST_INSTANCES + 2) in cache
