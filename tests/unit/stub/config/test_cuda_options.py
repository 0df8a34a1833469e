"""An entry's settings on a GPU are read as Triton's ONNX Runtime backend reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.stub.config.cuda_options import read_cuda_options
from brisk.stub.config.entry import Entry, read_entry
from brisk.tuning import CUDA_OPTIONS, EXTENDED, Setting

ACCELERATOR = "optimization.execution_accelerators.gpu_execution_accelerator"


def texts(**values: str) -> dict[str, dict[str, str]]:
    return {name: {"string_value": value} for name, value in values.items()}


def accelerated(name: str = "cuda", **options: str) -> dict[str, Any]:
    accelerators = [{"name": name, "parameters": options}]
    return {"execution_accelerators": {"gpu_execution_accelerator": accelerators}}


def entry_on(kind: str, directory: Path, **config: Any) -> Entry:
    file = directory / "1" / "model.onnx"
    file.parent.mkdir(exist_ok=True)
    file.touch()
    return read_entry(
        {
            "model_name": "m",
            "model_version": "1",
            "model_repository": str(directory),
            "model_config": json.dumps(config),
            "model_instance_kind": kind,
        }
    )


def test_nothing_said_leaves_brisk_s_choices(tmp_path: Path) -> None:
    entry = entry_on("GPU", tmp_path)
    assert entry.model.tuning.cuda == ()
    assert entry.notices == ()


def test_parameters_of_the_entry_have_numbers_and_win() -> None:
    config = {
        "parameters": texts(
            cudnn_conv_algo_search="0", arena_extend_strategy="0", gpu_mem_limit="1073741824"
        ),
        "optimization": accelerated(cudnn_conv_algo_search="DEFAULT", use_tf32="0"),
    }
    options = read_cuda_options(config)
    assert options.settings == (
        Setting("arena_extend_strategy", "kNextPowerOfTwo"),
        Setting("cudnn_conv_algo_search", "EXHAUSTIVE"),
        Setting("gpu_mem_limit", "1073741824"),
        Setting("use_tf32", "0"),
    )
    assert options.notices == ()


@pytest.mark.parametrize(
    ("parameter", "value", "refusal"),
    [
        ("cudnn_conv_algo_search", "3", "must be 0 (EXHAUSTIVE), 1 (HEURISTIC) or 2 (DEFAULT)"),
        ("arena_extend_strategy", "kSameAsRequested", "must be 0 (kNextPowerOfTwo) or 1"),
        ("gpu_mem_limit", "2 GB", "must be a number of bytes"),
        ("gpu_mem_limit", "-1", "must be a number of bytes"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(parameter: str, value: str, refusal: str) -> None:
    with pytest.raises(InvalidConfigurationError) as caught:
        read_cuda_options({"parameters": texts(**{parameter: value})})
    assert f"in the parameters: {parameter} {refusal}" in str(caught.value)
    assert f"not '{value}'" in str(caught.value)


def test_every_wrong_option_of_the_accelerator_is_refused_at_once() -> None:
    config = {"optimization": accelerated(use_tf32="maybe", cudnn_conv_algo_search="1")}
    with pytest.raises(InvalidConfigurationError) as caught:
        read_cuda_options(config)
    assert str(caught.value) == (
        f"in the parameters of {ACCELERATOR}: cudnn_conv_algo_search must be EXHAUSTIVE, "
        "HEURISTIC or DEFAULT, not '1'; use_tf32 must be 0 or 1, or false or true, not 'maybe'"
    )


def test_what_that_backend_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="unknown accelerator 'tpu'; expected 'cu"):
        read_cuda_options({"optimization": accelerated("tpu")})
    with pytest.raises(
        InvalidConfigurationError, match="option 'gpu_memlimit' of cuda, did you mean 'gpu_mem_l"
    ):
        read_cuda_options({"optimization": accelerated(gpu_memlimit="1")})


def test_what_brisk_drives_itself_is_told() -> None:
    options = read_cuda_options({"optimization": accelerated(enable_cuda_graph="1")})
    assert options.settings == ()
    assert [str(notice) for notice in options.notices] == [
        f"{ACCELERATOR}.enable_cuda_graph has no effect: Brisk chooses device and streams, and "
        "captures runs, itself"
    ]


def test_all_settings_of_an_entry_hold_on_a_gpu(tmp_path: Path) -> None:
    library = tmp_path / "libown.so"
    library.touch()
    entry = entry_on(
        "GPU",
        tmp_path,
        parameters=texts(**{"session.set_denormal_as_zero": "1", "gpu_mem_limit": "5"}),
        optimization={"graph": {"level": 1}, **accelerated(use_tf32="false")},
        model_operations={"op_library_filename": ["libown.so"]},
    )
    tuning = entry.model.tuning
    assert tuning.optimisation == EXTENDED
    assert tuning.settings == (Setting("session.set_denormal_as_zero", "1"),)
    assert tuning.cuda == (Setting("gpu_mem_limit", "5"), Setting("use_tf32", "false"))
    assert tuning.operator_libraries == (str(library),)
    assert entry.notices == ()
    assert entry.parameters.ignored_onnxruntime == entry.parameters.foreign == ()


def test_what_cannot_hold_on_a_gpu_is_told(tmp_path: Path) -> None:
    shrinkage = "memory.enable_memory_arena_shrinkage"
    entry = entry_on(
        "GPU",
        tmp_path,
        parameters=texts(**{shrinkage: "cpu:0;gpu:0", "execution_mode": "1"}),
        optimization=accelerated("tensorrt"),
    )
    assert not entry.model.tuning.shrinks_arena
    assert not entry.model.tuning.is_parallel
    assert [(notice.level, notice.field) for notice in entry.notices] == [
        ("warning", "optimization.execution_accelerators"),
        ("info", f"parameters.{shrinkage}"),
        ("info", "parameters.execution_mode"),
    ]
    with pytest.raises(InvalidConfigurationError, match=f"{shrinkage} must be arenas such as gpu"):
        entry_on("GPU", tmp_path, parameters=texts(**{shrinkage: "gpu"}))


def test_on_a_cpu_they_are_ignored_and_listed(tmp_path: Path) -> None:
    entry = entry_on(
        "CPU",
        tmp_path,
        parameters=texts(gpu_mem_limit="many"),
        optimization=accelerated(use_tf32="0"),
    )
    assert entry.model.tuning.cuda == ()
    assert entry.parameters.ignored_onnxruntime == ("gpu_mem_limit",)
    assert [notice.field for notice in entry.notices] == ["optimization.execution_accelerators"]


def test_settings_that_reach_a_worker_are_checked_there(tmp_path: Path) -> None:
    tuning = entry_on("CPU", tmp_path).model.tuning
    assert "device_id" not in CUDA_OPTIONS
    with pytest.raises(InvalidConfigurationError, match="'device_id' is no setting that an entry"):
        tuning._replace(cuda=(Setting("device_id", "1"),)).check()
    with pytest.raises(InvalidConfigurationError, match="use_tf32 must be 0 or 1"):
        tuning._replace(cuda=(Setting("use_tf32", "2"),)).check()
