"""`brisk bench conformance`: ONNX's node cases as Brisk serves them on a CPU, and ONNX Runtime's.

The cases are the ONNX project's own. Each runs through segments in the forms that a model has one
after the other: as its file is opened, exchanged for warm sessions, and prepared for later
starts. ONNX Runtime runs it by itself: what it refuses or answers otherwise is no failure of ours.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from brisk.graph.files.element_types import name_of_element
from brisk.protocol.datatypes import BY_ELEMENT_NAME
from brisk.segments.frame import run_serially
from brisk.segments.model.sources import BareModel
from brisk.segments.onnxruntime import onnxruntime
from brisk.segments.prepared.form import PreparedModel
from brisk.segments.prepared.preparation import prepare
from brisk.segments.program import SegmentProgram
from brisk.segments.starting import open_warm_program, start_segments
from brisk.segments.values import to_array, to_ort_value
from brisk_bench.harness.command_line import bars, benchmark_parser, run_command
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Check, Report
from brisk_bench.harness.surroundings import environment

QUICK_STRIDE = 10
"""A quick run takes every tenth case."""

FIRST, WARM, PREPARED = FORMS = ("first", "warm", "prepared")
"""Forms of a model: as its file is opened, with exchanged sessions, and from its prepared form."""

RANDOM = ("test_bernoulli",)
"""Prefixes of cases whose numbers cannot be predicted: they come from no defined generator."""

NEWER = "the model is of a newer ONNX than it reads"
UNIMPLEMENTED = "it refuses the operator or its types"
PACKED = "a byte holds several elements"
"""Reasons why ONNX Runtime by itself has no answer; the last one's inputs fit neither side."""

_NEWER = re.compile(r"Unsupported model IR version|only \*guarantees\* support")
_PACKED = re.compile("a byte holds several elements")

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Spacing of numbers near 1, by dtype.

The cases expect the results of numpy, which rounds after every step; a single rounding differs by
this.
"""

Outputs = list[Any]
"""Outputs of all data sets of a case, one after the other."""


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """The outcome of one case.

    ``goes_over_wire``: whether all inputs and outputs are tensors of Triton's datatypes, the only
      ones that it serves.
    ``refused``: why ONNX Runtime by itself has no answer; None if it has one.
    ``peer_failure``: why its answer is not the expected one; None if it is.
    ``failures``: by form of ours, why there is no answer or not the expected one.
    ``differences``: by form of ours, why the answer is not ONNX Runtime's. A form in neither
      passed.
    """

    name: str
    goes_over_wire: bool
    segments: int
    refused: str | None
    peer_failure: str | None
    failures: Mapping[str, str] = field(default_factory=dict)
    differences: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def is_random(self) -> bool:
        return self.name.startswith(RANDOM)

    @property
    def is_worse(self) -> bool:
        """Whether ONNX Runtime passes the case and a form of ours does not."""
        return self.refused is None and self.peer_failure is None and not self.passed


def run(quick: bool) -> Report:
    """Run the node cases, a tenth of them where ``quick``."""
    cases = collect_cases()[:: QUICK_STRIDE if quick else 1]
    with tempfile.TemporaryDirectory(prefix="brisk-conformance-") as folder:
        return report_of(run_cases(cases, Path(folder)))


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("conformance", __doc__, "a tenth of the cases")
    return run_command(parser, arguments, run, bars("cases", "kind", "group"))


def collect_cases() -> list[Any]:
    """All node cases of the installed onnx, in its order; takes seconds."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, from making the expected values
        return list(node.collect_testcases(None))


def run_cases(
    cases: Iterable[Any], folder: Path, forms: Sequence[str] = FORMS
) -> list[CaseOutcome]:
    """Run each case by ONNX Runtime and in ``forms``, which include FIRST.

    ``folder``: where models and prepared forms are written.
    """
    with environment({"BRISK_CACHE_DIR": str(folder / "cache")}):
        return [_run(case, folder / f"{place}.onnx", forms) for place, case in enumerate(cases)]


def _run(case: Any, path: Path, forms: Sequence[str]) -> CaseOutcome:
    graph = case.model.graph
    onnx.save(case.model, path)
    infos = (*graph.input, *graph.output)
    peer, refused = _attempt(case, lambda: _by_itself(path))
    segments = 0

    def open_first() -> SegmentProgram:
        nonlocal segments
        model = BareModel(path, 1)
        segments = len(model.segments)
        starting = start_segments(model)
        starting.table.work("case")
        return starting.program

    def exchange() -> SegmentProgram:
        starting = start_segments(BareModel(path, 1))
        starting.table.work("case")
        starting.load_warm(lambda: True)
        return starting.program

    def open_prepared() -> SegmentProgram:
        return open_warm_program(PreparedModel(prepare(path, 1).path, path, 1))

    makers = {FIRST: open_first, WARM: exchange, PREPARED: open_prepared}
    failures, differences = {}, {}
    for form in forms:
        make = makers[form]
        ours, error = _attempt(case, lambda make=make: _runner(make()))  # type: ignore[misc]
        if failure := error or _judge(case, ours):
            failures[form] = failure
        if refused is None and (difference := error or compare(ours, peer, case.rtol, case.atol)):
            differences[form] = difference
    path.unlink()
    return CaseOutcome(
        case.name,
        all(map(_is_of_triton, infos)),
        segments,
        refused,
        None if refused else _judge(case, peer),
        failures,
        differences,
    )


_PLACE = re.compile(r"(?<!\w)/\S+")
"""A path, which is removed from errors: it says nothing about another machine."""


def _is_of_triton(info: Any) -> bool:
    """Whether the value is a tensor of one of Triton's datatypes."""
    element = info.type.tensor_type.elem_type  # 0 for what is no tensor
    return name_of_element(element) in BY_ELEMENT_NAME


Runner = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Computes outputs by name from inputs by name."""


def _runner(program: SegmentProgram) -> Runner:
    return lambda inputs: run_serially(program, inputs)


def _by_itself(path: Path) -> Runner:
    """Return a runner of ONNX Runtime alone, from the file.

    Its Python function takes no array of a type that numpy lacks (bfloat16, float8): tensors go in
    and out as OrtValues. Strings and non-tensors have no OrtValues and go through that function.
    """
    library = onnxruntime()
    options = library.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = library.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    infos = (*session.get_inputs(), *session.get_outputs())
    is_plain = all(map(_has_ort_values, infos))

    def compute(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if not is_plain:
            return dict(zip(names, session.run(names, dict(inputs)), strict=True))
        feeds = {name: to_ort_value(array) for name, array in inputs.items()}
        values = list(session._sess.run_with_ort_values(feeds, names, None))
        return {name: to_array(value) for name, value in zip(names, values, strict=True)}

    return compute


def _has_ort_values(info: Any) -> bool:
    return info.type.startswith("tensor(") and info.type != "tensor(string)"


def _attempt(case: Any, make: Callable[[], Runner]) -> tuple[Outputs, str | None]:
    """Return the outputs of all data sets and None, or no outputs and the error."""
    graph = case.model.graph
    names = [value.name for value in graph.input]
    all_outputs: Outputs = []
    try:
        compute = make()
        for values, _ in case.data_sets:
            inputs = {name: as_array(each) for name, each in zip(names, values, strict=False)}
            outputs = compute(inputs)
            all_outputs += [_plain(outputs[value.name]) for value in graph.output]
    except Exception as error:  # noqa: BLE001  # ONNX Runtime's have no common class
        return [], _PLACE.sub("model", f"{type(error).__name__}: {error}")
    return all_outputs, None


def _plain(value: Any) -> Any:
    return [np.asarray(each) for each in value] if isinstance(value, list) else value


def _judge(case: Any, made: Outputs) -> str | None:
    """Return why the outputs are not the expected ones; None if they are, within the tolerance."""
    names = [value.name for value in case.model.graph.output]
    expected = [as_array(each) for _, outputs in case.data_sets for each in outputs]
    for place, (actual, reference) in enumerate(zip(made, expected, strict=True)):
        difference = compare(actual, reference, case.rtol, case.atol)
        if difference is not None:
            return f"output '{names[place % len(names)]}': {difference}"
    return None


def report_of(outcomes: Sequence[CaseOutcome]) -> Report:
    """Report ``outcomes``: rows of counts; checks that our answers are ONNX Runtime's."""
    refused = [each for each in outcomes if each.refused is not None]
    otherwise = [each for each in outcomes if each.peer_failure is not None]
    peers = [each for each in outcomes if each.refused is None and each.peer_failure is None]
    not_served = [each for each in peers if each.is_worse and not each.goes_over_wire]
    worse = [
        each for each in peers if each.is_worse and each.goes_over_wire and not each.is_random
    ]
    unlike = [
        each
        for each in outcomes
        if each.differences and each.goes_over_wire and not each.is_random
    ]
    counts = {
        "all cases": len(outcomes),
        "passed by Brisk in every form": sum(each.passed for each in outcomes),
        **{
            f"passed in the {form} form": sum(form not in each.failures for each in outcomes)
            for form in FORMS
        },
        "passed by ONNX Runtime itself": len(peers),
        "of these not by Brisk": sum(each.is_worse for each in peers),
        "of these with a type that Triton has not": len(not_served),
        "no answer of ONNX Runtime itself": len(refused),
        **{
            f"of these since {reason}": sum(_why_refused(each) == reason for each in refused)
            for reason in (NEWER, UNIMPLEMENTED, PACKED)
        },
        "ONNX Runtime itself answers otherwise than expected": len(otherwise),
    }
    operators = Counter(
        each.name.removeprefix("test_").split("_")[0]
        for each in refused
        if _why_refused(each) == UNIMPLEMENTED
    )
    listed = ", ".join(f"{word} {count}" for word, count in operators.most_common())
    notes = [
        *(f"fails: {each.name}: {_words(each.failures)}" for each in worse),
        *(f"differs: {each.name}: {_words(each.differences)}" for each in unlike),
        *(f"not of Triton: {each.name}: {_words(each.failures)}" for each in not_served),
        *(
            f"random numbers, held against nothing: {each.name}"
            for each in outcomes
            if each.is_random and each.refused is None
        ),
        f"{UNIMPLEMENTED}, by operator: {listed}",
        *(
            f"ONNX Runtime answers otherwise: {each.name}: {each.peer_failure}"
            for each in otherwise
        ),
    ]
    report = new_report("conformance", ("onnx", "onnxruntime", "numpy"), notes)
    report.rows += [
        {"kind": "node cases", "group": group, "cases": count} for group, count in counts.items()
    ]
    report.checks += [
        Check(
            "cases that ONNX Runtime passes and Brisk does not, of Triton's datatypes",
            len(worse),
            "0",
            not worse,
        ),
        Check(
            "cases that Brisk answers otherwise than ONNX Runtime, of Triton's datatypes",
            len(unlike),
            "0",
            not unlike,
        ),
    ]
    return report


def _why_refused(outcome: CaseOutcome) -> str:
    reason = outcome.refused or ""
    if _NEWER.search(reason):
        return NEWER
    return PACKED if _PACKED.search(reason) else UNIMPLEMENTED


def _words(reasons: Mapping[str, str]) -> str:
    """List forms with their reasons, those of one reason together."""
    forms: dict[str, list[str]] = {}
    for form, reason in reasons.items():
        forms.setdefault(reason, []).append(form)
    return "; ".join(f"{', '.join(each)}: {reason:.300}" for reason, each in forms.items())


def as_array(value: Any) -> Any:
    """Return a case's datum as numpy has it: tensors decoded, sequences as lists."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [as_array(item) for item in value]
    return np.asarray(value) if isinstance(value, np.generic) else value


def compare(actual: Any, expected: Any, rtol: float, atol: float) -> str | None:
    """Return why ``actual`` is not ``expected``; None if it is, within the tolerance."""
    if expected is None or isinstance(expected, dict):
        return None if actual == expected else f"{actual!r} is not {expected!r}"
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return f"{actual!r} is no sequence of {len(expected)}"
        for place, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
            if (difference := compare(mine, theirs, rtol, atol)) is not None:
                return f"element {place}: {difference}"
        return None
    if not isinstance(actual, (np.ndarray, np.generic)):
        return f"{type(actual).__name__} is no array"
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return f"shape {actual.shape} is not {expected.shape}"
    if expected.dtype.kind in "OUS":
        return None if (actual == expected).all() else "the strings differ"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype} is not {expected.dtype}"
    epsilon = EPSILON.get(expected.dtype.name, 0.0)
    if expected.dtype.kind != "c":
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    rtol, atol = max(rtol, epsilon), max(atol, epsilon)
    if np.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        furthest = np.nanmax(np.abs(actual - expected))
    return f"differs by up to {furthest:.3g} (rtol {rtol:.1g}, atol {atol:.1g})"
