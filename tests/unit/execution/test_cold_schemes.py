"""Every scheme of a cold start gives the answers of the warm program, also the second time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brisk.errors import InvalidConfigurationError
from brisk.execution.cold import Scheme, start
from brisk.execution.plan import make_plan
from brisk.execution.preparation import prepare
from brisk.execution.reuse import ReusingSource, Search
from brisk.execution.sources import ModelSource
from brisk.graph.reader import read_program
from brisk.segments.table import LayerTable
from brisk.segments.timeline import EventKind, Recorder
from brisk.solutions.base import Pattern
from brisk.solutions.catalogue import default_catalogue
from brisk.solutions.categories import CacheStatistics, CategoryCache, Instance
from unit.execution.starting_models import CPU, Example, save, small_network, stage_costs
from unit.graph.graph_models import model, random

pytestmark = pytest.mark.usefixtures("private_cache")

OPERATORS = ("conv3", "conv1", "relu", "add", "pool", "depthwise")


def network(operators: list[str], seed: int) -> onnx.ModelProto:
    """A chain of the operators on eight channels, with additions of earlier values."""
    lines, weights, values = [], {}, ["x"]
    for index, operator in enumerate(operators):
        last, new = values[-1], f"v{index}"
        if operator == "relu":
            lines.append(f"{new} = Relu ({last})")
        elif operator == "add":
            lines.append(f"{new} = Add ({last}, {values[seed % len(values)]})")
        elif operator == "pool":
            lines.append(
                f"{new} = MaxPool <kernel_shape=[3,3], pads=[1,1,1,1], strides=[1,1]> ({last})"
            )
        else:
            size, group = (1 if operator == "conv1" else 3), (8 if operator == "depthwise" else 1)
            pads = [size // 2] * 4
            attributes = f"kernel_shape=[{size},{size}], pads={pads}, group={group}"
            lines.append(f"{new} = Conv <{attributes}> ({last}, w{index})")
            scale = np.float32(1 / (size * np.sqrt(8 / group)))
            weights[f"w{index}"] = random(8, 8 // group, size, size, seed=seed + index) * scale
        values.append(new)
    lines.append(f"y = Flatten ({values[-1]})")
    text = "g (float[1,8,9,9] x) => (float[1,648] y) {\n" + "\n".join(lines) + "}"
    return model(text, **weights)


def check_every_scheme(example: Example, artefact: Path) -> None:
    """Brisk's also without the artefact: by the costs that were measured when it was made, and
    by those of a machine on which every substitute is a gain."""
    for scheme in Scheme:
        check_start(example, scheme, artefact)
    check_start(example, Scheme.BRISK, None)
    stage_costs(load_ns_per_byte=1e6, substitute_ns=2)
    check_start(example, Scheme.BRISK, None)


def check_start(example: Example, scheme: Scheme, artefact: Path | None) -> None:
    started = start(example.path, scheme, example.inputs, CPU, 2, artefact)
    example.check(started.outputs)
    example.check(started.run(example.inputs))
    started.settle()
    example.check(started.run(example.inputs))
    started.close()


def test_every_scheme_answers_alike(tmp_path: Path) -> None:
    example = small_network(tmp_path / "entry")
    check_every_scheme(example, prepare(example.path, CPU, 2).path)


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    operators=st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=7),
    seed=st.integers(0, 99),
)
def test_random_networks_answer_alike_by_every_scheme(
    tmp_path: Path, operators: list[str], seed: int
) -> None:
    example = save(network(operators, seed), tmp_path / "entry", x=(1, 8, 9, 9))
    check_every_scheme(example, prepare(example.path, CPU, 2).path)


def test_each_layer_runs_once_until_the_first_answer(tmp_path: Path) -> None:
    example = small_network(tmp_path / "entry")
    artefact = prepare(example.path, CPU, 2).path
    for scheme in Scheme:
        started = start(example.path, scheme, example.inputs, CPU, 2, artefact)
        runs = [e.layer for e in started.timeline.events if e.kind is EventKind.RUN]
        assert runs == list(range(started.statistics.layers)), scheme
        assert 0.0 < started.timeline.utilisation <= 1.0
        trace = started.timeline.to_chrome()
        assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
        started.close()


def test_reuse_without_interleaving_takes_substitutes_from_every_category(
    tmp_path: Path,
) -> None:
    example = small_network(tmp_path / "entry")
    started = start(example.path, Scheme.PASK_R, example.inputs, CPU, 2)
    seen = started.statistics
    assert seen.reused > 0
    assert seen.queries >= seen.hits >= seen.reused
    assert seen.lookups > seen.queries
    started.close()


def test_from_the_first_layer_that_is_waited_for_pask_takes_substitutes(tmp_path: Path) -> None:
    catalogue, recorder = default_catalogue(), Recorder()
    plan = make_plan(read_program(small_network(tmp_path / "entry").path), CPU, catalogue)
    model = ModelSource(plan, catalogue, recorder, is_cold=False)
    cache = CategoryCache(catalogue.residents())
    source = ReusingSource(model, cache, Search.CATEGORY, catalogue, recorder)
    table = LayerTable(len(plan.layers), source.load, [[]], recorder)
    source.attend(table)
    substituted = "torch_product"
    assert source.load(0, "load-0", False).solution.name != substituted
    assert source.milestone is None
    table[0]  # what the very first layer takes is waited for by everybody
    assert source.load(0, "load-0", False).solution.name != substituted
    assert table.caught_up is None
    table[1]
    assert table.caught_up == 1
    others = [
        source.load(index, "load-0", False).solution.name for index in range(2, len(plan.layers))
    ]
    assert source.milestone == 0
    assert substituted in others
    assert cache.statistics().queries > 0


def test_a_query_looks_only_into_the_pattern_and_first_at_what_was_used_last(
    tmp_path: Path,
) -> None:
    catalogue = default_catalogue()
    example = small_network(tmp_path / "entry")
    plan = make_plan(read_program(example.path), CPU, catalogue)
    convolution = next(each for each in plan.layers if each.problem.operator == "Conv")
    direct = catalogue.named("onednn_convolution")
    assert direct is not None
    cache = CategoryCache(catalogue.residents())
    found = cache.substitute(direct, convolution.problem)
    assert found is not None
    assert found.solution.name == "general_convolution"
    assert found.solution.pattern is direct.pattern is Pattern.DIRECT
    assert cache.statistics() == CacheStatistics(1, 1, 1)
    loaded = Instance.of(direct, convolution.problem)
    cache.add(loaded)
    assert cache.substitute(direct, convolution.problem) == loaded
    assert cache.statistics() == CacheStatistics(2, 2, 2)
    attention = catalogue.named("fused_attention")
    assert attention is not None
    assert cache.substitute(attention, convolution.problem) is None
    assert cache.statistics() == CacheStatistics(3, 2, 3)


def test_an_unknown_scheme_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match="no scheme 'fast'; known are baseline"):
        start(tmp_path / "m.onnx", "fast", {})
