"""What is said of models and machines that compute far slower than elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk.doctor import arithmetic, compiled_kernels
from brisk.doctor.base import Verdict
from brisk.errors import InvalidModelError
from brisk.graph.arithmetic import DYNAMIC, FLOAT16, QDQ, QOPERATOR, Slowness, slow_arithmetic
from unit.doctor.deployments import deployment, write_model

OLD, NEW = frozenset({"avx2", "fma"}), frozenset({"avx2", "fma", "avx512f"})


def save(path: Path, nodes: list[onnx.NodeProto], *weights: tuple[str, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    constants = [numpy_helper.from_array(array, name) for name, array in weights]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def node(operator: str, *inputs: str, output: str = "y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, inputs, [output], **attributes)


HALF = ("w", np.ones((4, 4), np.float16))
IN_A_BODY = helper.make_graph(
    [node("Constant", output="c", value=numpy_helper.from_array(HALF[1])), node("Neg", "c")],
    "body",
    [],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT16, [4, 4])],
)
MODELS: dict[str, tuple[list[onnx.NodeProto], list[Slowness]]] = {
    "float32": ([node("Neg", "x")], []),
    "float16": ([node("MatMul", "x", "w")], [FLOAT16]),
    "float16 in a body": (
        [node("If", "x", then_branch=IN_A_BODY, else_branch=IN_A_BODY)],
        [FLOAT16],
    ),
    "float16 that is cast": ([node("Cast", "w", output="f", to=1), node("MatMul", "x", "f")], []),
    "dynamic": ([node("MatMulInteger", "x", "x")], [DYNAMIC]),
    "operators": ([node("QLinearConv", "x")], [QOPERATOR]),
    "pairs": ([node("QuantizeLinear", "x", output="q"), node("DequantizeLinear", "q")], [QDQ]),
    "compressed weights": ([node("DequantizeLinear", "x")], []),
}


@pytest.mark.parametrize("name", MODELS)
def test_low_precision_is_seen_where_the_processor_is_slow_at_it(
    name: str, tmp_path: Path
) -> None:
    nodes, slow = MODELS[name]
    file = save(tmp_path / "model.onnx", nodes, HALF)
    assert slow_arithmetic(file, OLD) == slow
    assert slow_arithmetic(file, NEW) == []
    assert slow_arithmetic(file, frozenset()) == []


def test_what_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="cannot be read: No such file"):
        slow_arithmetic(tmp_path / "model.onnx", OLD)
    (tmp_path / "model.onnx").write_bytes(b"no model at all")
    with pytest.raises(InvalidModelError, match="not an ONNX model"):
        slow_arithmetic(tmp_path / "model.onnx", OLD)


def test_the_doctor_names_the_entry_and_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "half" / "1" / "model.onnx", MODELS["float16"][0], HALF)
    save(tmp_path / "pairs" / "1" / "model.onnx", MODELS["pairs"][0])
    write_model(tmp_path, "Relu")
    own = {"BRISK_ENGINE": "brisk"}
    looked_at = deployment(tmp_path, repositories=(tmp_path,), environment=own)
    monkeypatch.setattr(arithmetic, "processor_flags", lambda: OLD)
    (found,) = arithmetic.look(deployment(tmp_path, repositories=(tmp_path,), environment={}))
    assert (found.verdict, "ONNX Runtime computes" in found.found) == (Verdict.GOOD, True)
    (found,) = arithmetic.look(looked_at)
    assert found.verdict is Verdict.ADVICE
    assert f"{tmp_path}/half/1/model.onnx: float16 weights" in found.found
    assert "27 to 35 times" in found.cost
    monkeypatch.setattr(arithmetic, "processor_flags", lambda: NEW)
    (found,) = arithmetic.look(looked_at)
    assert found.verdict is Verdict.GOOD


@pytest.mark.parametrize(("flag", "is_slow"), [("avx2", True), ("avx512f", False)])
def test_explain_says_it_in_its_first_line(flag: str, is_slow: bool, tmp_path: Path) -> None:
    pair = [
        node("QuantizeLinear", "x", "scale", "zero", output="q"),
        node("DequantizeLinear", "q", "scale", "zero"),
    ]
    scale = ("scale", np.float32(0.5)), ("zero", np.uint8(0))
    file = save(tmp_path / "model.onnx", pair, *((name, np.array(v)) for name, v in scale))
    program = (
        "import sys; from brisk.graph import arithmetic; from brisk.cli import main; "
        "flags = frozenset({sys.argv.pop(1)}); arithmetic.processor_flags = lambda: flags; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, flag, "explain", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "BRISK_ENGINE": "brisk"},
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()[0].startswith("slow here: quantised int8 (QDQ form): on a")
    assert said is is_slow, done.stdout


def test_a_machine_without_a_compiler_has_no_compiled_kernels(tmp_path: Path) -> None:
    bare = {"PATH": str(tmp_path)}
    (found,) = compiled_kernels.look(deployment(tmp_path, environment=bare))
    assert found.verdict is Verdict.ADVICE
    assert "no C++ compiler (c++, g++, clang++)" in found.found
    assert "1.32" in found.cost
    compiler = tmp_path / "g++"
    compiler.symlink_to("/only/in/the/container")
    (found,) = compiled_kernels.look(deployment(tmp_path, environment=bare))
    assert (found.verdict, found.found) == (Verdict.GOOD, f"by {compiler}")
    named = {"PATH": str(tmp_path), "CXX": "icpx"}
    (found,) = compiled_kernels.look(deployment(tmp_path, environment=named))
    assert "no C++ compiler (icpx)" in found.found
    absolute = {"PATH": "/nowhere", "CXX": str(compiler)}
    (found,) = compiled_kernels.look(deployment(tmp_path, environment=absolute))
    assert found.verdict is Verdict.GOOD
