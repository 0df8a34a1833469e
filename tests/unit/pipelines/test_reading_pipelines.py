"""The content of a ``pipeline.json``, and the messages about a wrong one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brisk.errors import InvalidModelError
from brisk.pipelines import NodeSource, TensorType, read_pipeline
from brisk.stub.config.signature import model_signature
from support.pipeline_entries import confident, describe_fork, network, scaler, write


@pytest.fixture
def version(tmp_path: Path) -> Path:
    return tmp_path / "repository" / "fork" / "1"


@pytest.fixture
def fork(version: Path) -> dict[str, Any]:
    return describe_fork(version)


def test_a_description_is_read_with_its_nodes_in_the_order_they_can_run(
    version: Path, fork: dict[str, Any]
) -> None:
    fork["nodes"] = dict(reversed(fork["nodes"].items()))
    pipeline = read_pipeline(write(version, fork))
    order = [node.name for node in pipeline.nodes]
    assert order[0] == "first"
    assert order[-1] == "join"
    assert pipeline.objective_ns == 10**9
    assert (pipeline.policy, pipeline.replanning) == ("proportional", "static")
    assert pipeline.inputs == ("x",)
    assert pipeline.outputs == {"y": NodeSource("join", "y")}
    assert {path.name for _, path in pipeline.networks} >= {"first_small.onnx", "join.onnx"}


def test_a_network_may_be_another_entry_s(version: Path, fork: dict[str, Any]) -> None:
    repository = version.parent.parent
    scaler(repository / "doubler" / "1" / "model.onnx", 2.0)
    newest = scaler(repository / "doubler" / "12" / "model.onnx", 2.0)
    variants = fork["nodes"]["first"]["variants"]
    variants["small"] = {"entry": "doubler", "version": 1, "accuracy": 0.5}
    variants["large"] = {"entry": "doubler", "accuracy": 0.6}
    paths = [variant.path for variant in read_pipeline(write(version, fork)).nodes[0].variants]
    assert paths == [repository / "doubler" / "1" / "model.onnx", newest]


Change = Callable[[dict[str, Any]], object]

WRONG: dict[str, tuple[Change, str]] = {
    "a missing objective": (lambda d: d.pop("objective_ms"), "objective_ms must be a number"),
    "a wrong objective": (lambda d: d.update(objective_ms=-3), "above 0 .* not -3"),
    "an unknown policy": (lambda d: d.update(policy="eqal"), "did you mean 'equal'"),
    "an unknown field": (lambda d: d.update(objektive_ms=3), "did you mean 'objective_ms'"),
    "no nodes": (lambda d: d.update(nodes={}), "nodes must be an object with at least one"),
    "a source that is no text": (
        lambda d: d["nodes"]["first"]["inputs"].update(x=4),
        "must come from 'request.TENSOR' or 'NODE.TENSOR', not 4",
    ),
    "an unknown node": (
        lambda d: d["nodes"]["left"]["inputs"].update(x="frist.y"),
        "unknown node 'frist', did you mean 'first'",
    ),
    "a circle": (
        lambda d: d["nodes"]["first"]["inputs"].update(x="join.y"),
        "they wait for each other",
    ),
    "a missing file": (
        lambda d: d["nodes"]["join"]["variants"]["only"].update(file="jion.onnx"),
        "there is no file .*jion.onnx, did you mean 'join.onnx'",
    ),
    "a way out": (
        lambda d: d["nodes"]["join"]["variants"]["only"].update(file="../../secret.onnx"),
        "outside the model's folder",
    ),
    "an absolute way": (
        lambda d: d["nodes"]["join"]["variants"]["only"].update(file="/etc/passwd"),
        "outside the model's folder",
    ),
    "a way out through an entry's name": (
        lambda d: d["nodes"]["join"]["variants"].update(only={"entry": "../x", "accuracy": 1}),
        "is no name of an entry",
    ),
    "an unknown entry": (
        lambda d: d["nodes"]["join"]["variants"].update(only={"entry": "frok", "accuracy": 1}),
        "no entry 'frok' .* did you mean 'fork'",
    ),
    "an entry that cannot be looked for": (
        lambda d: d["nodes"]["join"]["variants"].update(only={"entry": "x" * 300, "accuracy": 1}),
        "node 'join', variant 'only': its network cannot be found: .*File name too long",
    ),
    "a file and an entry": (
        lambda d: d["nodes"]["join"]["variants"]["only"].update(entry="fork"),
        "by 'file' alone",
    ),
    "an accuracy in percent": (
        lambda d: d["nodes"]["join"]["variants"]["only"].update(accuracy=97),
        "variant 'only': accuracy must be a number above 0 and up to 1, not 97",
    ),
    "a node named request": (
        lambda d: d["nodes"].update(request=d["nodes"]["join"]),
        "node 'request': a name has",
    ),
    "an output of the request": (
        lambda d: d.update(outputs={"y": "request.x"}),
        "'y' must come from a node",
    ),
    "trial shapes of nothing": (
        lambda d: d.update(trial_shapes={"z": [1, 4]}),
        "the pipeline has no input 'z'",
    ),
    "a trial shape of zeros": (
        lambda d: d.update(trial_shapes={"x": [0, 4]}),
        "'x' must be sizes above 0",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_description_is_refused(version: Path, fork: dict[str, Any], case: str) -> None:
    change, message = WRONG[case]
    wrong = copy.deepcopy(fork)
    change(wrong)
    with pytest.raises(InvalidModelError, match=message):
        read_pipeline(write(version, wrong))


def test_an_entry_that_others_may_not_list_needs_a_version(
    version: Path, fork: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scaler(version.parent.parent / "hidden" / "3" / "model.onnx", 2.0)

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    variants = fork["nodes"]["join"]["variants"]
    variants["only"] = {"entry": "hidden", "accuracy": 1}
    with pytest.raises(InvalidModelError, match=r"'only': its network .*denied: '.*/hidden'"):
        read_pipeline(write(version, fork))
    variants["only"]["version"] = 3
    read_pipeline(write(version, fork))


def test_all_problems_are_told_at_once(version: Path, fork: dict[str, Any]) -> None:
    fork.update(policy="fair", objective_ms="soon")
    fork["nodes"]["join"]["variants"]["only"]["accuracy"] = True
    with pytest.raises(InvalidModelError) as caught:
        read_pipeline(write(version, fork))
    for part in ("policy is 'fair'", 'objective_ms must be .* not "soon"', "not true"):
        caught.match(part)


def test_what_is_no_json_or_says_a_thing_twice_is_refused(
    version: Path, fork: dict[str, Any]
) -> None:
    path = write(version, fork)
    path.write_text("{nodes")
    with pytest.raises(InvalidModelError, match="is not JSON"):
        read_pipeline(path)
    path.write_text('{"objective_ms": 1, "objective_ms": 2}')
    with pytest.raises(InvalidModelError, match="'objective_ms' is there 2 times"):
        read_pipeline(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidModelError, match="cannot be read"):
        read_pipeline(path)


def test_a_link_out_of_the_repository_is_not_followed(
    version: Path, fork: dict[str, Any], tmp_path: Path
) -> None:
    outside = scaler(tmp_path / "outside.onnx", 2.0)
    (version / "join.onnx").unlink()
    (version / "join.onnx").symlink_to(outside)
    with pytest.raises(InvalidModelError, match="outside the model's folder"):
        read_pipeline(write(version, fork))


def test_the_pipeline_takes_and_gives_what_its_networks_do(
    version: Path, fork: dict[str, Any]
) -> None:
    signature = model_signature(write(version, fork))
    assert signature.inputs == {"x": TensorType("float32", (None, 4))}
    assert signature.outputs == {"y": TensorType("float32", (None, 4))}


def test_tensors_that_do_not_fit_are_told_with_node_and_variant(
    version: Path, fork: dict[str, Any]
) -> None:
    scaler(version / "left_large.onnx", 3.0, shape=["n", 5])
    fork["nodes"]["join"]["inputs"] = {"a": "left.z", "c": "right.y"}
    with pytest.raises(InvalidModelError) as caught:
        model_signature(write(version, fork))
    caught.match("node 'left', variant 'large': its input 'x' is float32 .* 5.*, but first.y is")
    caught.match("not every variant makes left.z")
    caught.match("node 'join', variant 'only': it has no input 'c'")
    caught.match("nothing is said of its input 'b'")


def test_an_early_answer_needs_the_output_that_says_how_sure_it_is(
    version: Path, fork: dict[str, Any]
) -> None:
    confident(version / "early.onnx")
    early = {"file": "early.onnx", "confidence": "p", "at_least": 0.9}
    fork["nodes"]["first"]["early_answer"] = early
    assert model_signature(write(version, fork)).inputs.keys() == {"x"}
    early["confidence"] = "probability"
    with pytest.raises(InvalidModelError, match="early_answer: it has no output 'probability'"):
        model_signature(write(version, fork))


def test_a_network_that_is_no_model_is_named(version: Path, fork: dict[str, Any]) -> None:
    (version / "right_small.onnx").write_bytes(b"no model")
    with pytest.raises(InvalidModelError, match="node 'right', variant 'small': "):
        model_signature(write(version, fork))


def test_variants_with_outputs_of_other_sizes_make_a_dynamic_one(
    version: Path, fork: dict[str, Any]
) -> None:
    from onnx import helper

    for name, times in (("small", 1), ("large", 2)):
        node = helper.make_node("Concat", ["x"] * times, ["y"], axis=1)
        path = version / f"wide_{name}.onnx"
        network(path, [node], {"x": ["n", 4]}, {"y": ["n", 4 * times]})
    fork["nodes"] = {
        "wide": {
            "inputs": {"x": "request.x"},
            "variants": {
                name: {"file": f"wide_{name}.onnx", "accuracy": 0.5} for name in ("small", "large")
            },
        }
    }
    fork["outputs"] = {"y": "wide.y"}
    assert model_signature(write(version, fork)).outputs["y"].shape == (None, None)
