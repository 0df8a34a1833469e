"""The executor where it is not: no compiler, one that fails, a library that is not one."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from brisk.compiled import library as shelf
from brisk.compiled.compiler import (
    Build,
    CompilerError,
    add_seal,
    compile_library,
    is_whole,
    plan_build,
)
from brisk.compiled.library import Library, absence, library, wait_until_settled
from brisk.execution.loading import load_program
from brisk.execution.serial import run_serially
from brisk.graph.reader import read_program


@pytest.fixture
def _another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As in a process that has not asked for the executor yet, with an empty cache."""
    monkeypatch.setattr(shelf, "_shelf", shelf._Shelf())
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))


def small_model(folder: Path) -> Path:
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["means"]),
        helper.make_node("Sigmoid", ["means"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "small", [x], [y])
    file = folder / "small.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), file
    )
    return file


@pytest.mark.usefixtures("_another_process")
@pytest.mark.parametrize(
    ("compiler", "reason"),
    [("no-such-compiler", "no C++ compiler"), ("false", "failed")],
)
def test_without_a_working_compiler_layers_run_one_by_one_and_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str, reason: str
) -> None:
    monkeypatch.setenv("CXX", compiler)
    loaded = load_program(read_program(small_model(tmp_path)), torch.device("cpu"))
    assert wait_until_settled() is None
    assert reason in absence()
    assert loaded.joined is not None
    x = torch.randn(2, 3, 4, 4)
    (found,) = run_serially(loaded, {"x": x}).values()
    np.testing.assert_allclose(found, torch.sigmoid(x.mean((2, 3), keepdim=True)), rtol=1e-5)
    assert not list(tmp_path.glob("cache/native/*"))


def test_what_killed_compilers_have_left_goes_and_what_others_compile_stays(
    tmp_path: Path,
) -> None:
    left, others = tmp_path / "left.new", tmp_path / "others.new"
    for folder in (left, others):
        folder.mkdir()
        (folder / "executor.so").write_bytes(b"half")
    holding = (
        "import fcntl, os, sys; at = os.open(sys.argv[1], os.O_RDONLY); "
        "fcntl.flock(at, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holding, str(others)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(CompilerError, match="'/bin/false' failed"):
            compile_library(Build(Path("/bin/false"), tmp_path / "executor.so"))
        assert [path.name for path in tmp_path.iterdir()] == ["others.new"]
        process.kill()
    with pytest.raises(CompilerError, match="cannot be run"):
        compile_library(Build(Path("/bin/absent"), tmp_path / "executor.so"))
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_another_process")
def test_a_program_loaded_before_the_executor_is_there_uses_it_afterwards(tmp_path: Path) -> None:
    try:
        plan_build()
    except CompilerError as error:
        pytest.skip(str(error))
    loaded = load_program(read_program(small_model(tmp_path)), torch.device("cpu"))
    assert loaded.joined is not None
    kernel = loaded.joined.layers[0].kernel
    assert library() is None
    assert "being compiled" in absence()
    x = torch.randn(1, 3, 4, 4)
    (before,) = run_serially(loaded, {"x": x}).values()
    assert kernel._network is None  # type: ignore[attr-defined]
    assert wait_until_settled() is not None
    (after,) = run_serially(loaded, {"x": x}).values()
    assert kernel._network is not None  # type: ignore[attr-defined]
    np.testing.assert_allclose(before, after, rtol=1e-5)


def test_a_damaged_library_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "executor.so"
    file.write_bytes(b"\x7fELF and nothing else")
    with pytest.raises(CompilerError, match=r"executor\.so.*is not as it was compiled"):
        Library(file)
    add_seal(file)
    with pytest.raises(CompilerError, match=r"executor\.so.*cannot be loaded"):
        Library(file)


def test_the_same_sources_and_machine_give_the_same_place() -> None:
    try:
        assert plan_build() == plan_build()
    except CompilerError as error:
        pytest.skip(str(error))


def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "file"))
    try:
        build = plan_build()
    except CompilerError as error:
        pytest.skip(str(error))
    with pytest.raises(CompilerError, match=str(tmp_path / "file")):
        compile_library(build)


def test_a_library_whose_bytes_have_changed_is_not_whole(tmp_path: Path) -> None:
    file = tmp_path / "executor.so"
    file.write_bytes(b"code")
    assert not is_whole(file)
    file.write_bytes(b"code" + hashlib.sha256(b"code").digest())
    assert is_whole(file)
    file.write_bytes(b"c0de" + hashlib.sha256(b"code").digest())
    assert not is_whole(file)
    assert not is_whole(tmp_path / "absent.so")
