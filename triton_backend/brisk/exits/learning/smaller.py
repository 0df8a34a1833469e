"""A smaller model that the user names, as an approximate model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from brisk.errors import BriskError, InvalidModelError
from brisk.exits.base_model import load_graph, taps_of
from brisk.exits.cascade import SMALLER
from brisk.exits.data.collecting import check_batches, settled_scores
from brisk.exits.data.samples import Samples
from brisk.exits.files.container import DamagedFileError
from brisk.exits.learning.approximate import (
    LARGEST_BYTES,
    ApproximateModel,
    as_approximate,
    shape_of_input,
    until_scores,
)
from brisk.exits.model_graph import ModelGraph, read_graph, sizes_text
from brisk.exits.scores import Scores, find_scores, find_values
from brisk.graph.program import Variable


def check_smaller(file: Path, exact: ModelGraph, scores: Scores) -> None:
    """Raise InvalidModelError, which names the file, unless the model in ``file`` reads the inputs
    of the ``exact`` one and answers in the form of its ``scores``."""
    try:
        _matched(file, exact, scores)
    except (ValueError, OSError, BriskError) as error:
        raise _refusal(file, error) from error


def smaller_model(
    file: Path, exact: ModelGraph, scores: Scores, samples: Samples, threads: int
) -> ApproximateModel:
    """Return the model in ``file`` as an approximate one of the ``exact`` model.

    ``samples``: of the exact model's inputs. Raises InvalidModelError like ``check_smaller``, and
    if a row's answer depends on the others of its batch, or ONNX Runtime cannot run it.
    """
    try:
        graph, own, names = _matched(file, exact, scores)
        base = load_graph(graph, threads, taps_of((), own, graph))
        rows = Samples({name: samples.inputs[theirs] for name, theirs in names.items()})
        if own.tolerance is None:
            own = settled_scores(base, own, rows)
        check_batches(base, own, rows)
        return as_approximate(SMALLER, until_scores(graph, own), graph, own, names)
    except (ValueError, OSError, BriskError, DamagedFileError) as error:
        raise _refusal(file, error) from error


def _refusal(file: Path, error: Exception) -> InvalidModelError:
    return InvalidModelError(f"smaller model '{file}' cannot answer for this model: {error}")


def _matched(
    file: Path, exact: ModelGraph, scores: Scores
) -> tuple[ModelGraph, Scores, Mapping[str, str]]:
    """Return the graph in ``file``, its scores, and the exact model's name of each of its inputs.

    Raises ValueError, OSError, InvalidModelError.
    """
    graph = read_graph(file)
    shape_of_input(graph)
    if graph.file_bytes > LARGEST_BYTES:
        raise ValueError(f"it has more than {LARGEST_BYTES >> 20} MiB")
    if graph.is_single and not exact.is_single:
        raise ValueError("it takes batches of one row alone")
    names = _names(graph, exact)
    if scores.tolerance is None:
        own = find_scores(graph)
        if own.classes != scores.classes:
            raise ValueError(f"it has {own.classes} classes, expected {scores.classes}")
        return graph, own, names
    own = find_values(graph, scores.tolerance)
    forms = [(each.value, sorted(each.others), each.rank, each.classes) for each in (own, scores)]
    if forms[0] != forms[1]:
        outputs, expected = (
            ", ".join(_described(each) for each in one.outputs) for one in (graph, exact)
        )
        raise ValueError(f"it has outputs {outputs}; expected {expected}")
    return graph, dataclasses.replace(own, others=scores.others), names


def _names(graph: ModelGraph, exact: ModelGraph) -> Mapping[str, str]:
    """Return the exact model's name of each input: the same, or that of the only one.

    Raises ValueError if an input cannot be fed with all that the exact model takes.
    """
    theirs = {each.name: each for each in exact.needed}
    own = {each.name: each for each in graph.needed}
    names = dict.fromkeys(own, "")
    if own.keys() == theirs.keys():
        names = {name: name for name in own}
    elif len(own) == len(theirs) == 1:
        names = {next(iter(own)): next(iter(theirs))}
    if not all(name and _takes(own[each], theirs[name]) for each, name in names.items()):
        read, expected = (
            ", ".join(_described(each) for each in one.needed) for one in (graph, exact)
        )
        raise ValueError(f"it reads {read}; expected {expected}")
    return names


def _takes(own: Variable, theirs: Variable) -> bool:
    """Whether an input takes each value of another one: sizes are the same, or open."""
    ours, others = (each.type.shape or () for each in (own, theirs))
    if own.type.dtype != theirs.type.dtype or len(ours) != len(others):
        return False
    return all(
        not isinstance(size, int) or size == other
        for size, other in zip(ours[1:], others[1:], strict=True)
    )


def _described(variable: Variable) -> str:
    kind = variable.type
    return f"{variable.name} {kind.dtype} {sizes_text(kind.shape or ())}"
