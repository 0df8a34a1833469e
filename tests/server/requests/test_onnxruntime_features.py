"""What entries of Triton's ONNX Runtime backend may say, under a real server that has Brisk.

docs/migration.md names these tests in its table of that backend's features.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tritonclient import http
from tritonclient.utils import InferenceServerException

from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient
from support.models.custom_operators import compile_library, scaled
from support.server.entries import deep, doubled, write_entry
from support.server.running import StartServer
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timing, pytest.mark.beside]

SIGNATURE = (
    'platform: "onnxruntime_onnx" max_batch_size: 8 '
    'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] '
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ] '
)
WIDE = SIGNATURE.replace("[ 4 ]", "[ 64 ]")


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }} '


def level(value: int) -> str:
    return f"optimization {{ graph {{ level: {value} }} }} "


TUNED = {
    "intra_op_thread_count": parameter("intra_op_thread_count", "1"),
    "as_many_threads_as_there_are": parameter("intra_op_thread_count", "0"),
    "parallel": parameter("execution_mode", "1") + parameter("inter_op_thread_count", "2"),
    "enable_mem_arena": parameter("enable_mem_arena", "0"),
    "enable_mem_pattern": parameter("enable_mem_pattern", "false"),
    "shrinkage": parameter("memory.enable_memory_arena_shrinkage", "cpu:0"),
    "device_allocator": parameter("session.use_device_allocator_for_initializers", "1"),
    "prepacking": parameter("session.disable_prepacking", "1"),
    "shared": parameter("share_session_between_instances", "true"),
    "basic": level(-1),
    "all": level(0),
    "extended": level(1),
    "none": level(2),
}
REFUSED = {
    "execution_mode": (
        parameter("execution_mode", "2"),
        r"execution_mode must be 0 \(sequential\) or 1 \(parallel\), not '2'",
    ),
    "intra_op_thread_count": (
        parameter("intra_op_thread_count", "many"),
        "intra_op_thread_count must be a whole number, 0 .* or more, not 'many'",
    ),
    "inter_op_thread_count": (
        parameter("inter_op_thread_count", "-3"),
        "inter_op_thread_count must be a whole number, 0 .* or more, not '-3'",
    ),
    "enable_mem_arena": (
        parameter("enable_mem_arena", "2"),
        "enable_mem_arena must be 0 or 1, or false or true, not '2'",
    ),
    "enable_mem_pattern": (
        parameter("enable_mem_pattern", ""),
        "enable_mem_pattern must be 0 or 1, or false or true, not ''",
    ),
    "shrinkage": (
        parameter("memory.enable_memory_arena_shrinkage", "gpu:0"),
        "memory.enable_memory_arena_shrinkage must be cpu:0, .* not 'gpu:0'",
    ),
    "shrinkage_of_nothing": (
        parameter("memory.enable_memory_arena_shrinkage", "cpu:0")
        + parameter("enable_mem_arena", "0"),
        "memory.enable_memory_arena_shrinkage needs the arena that enable_mem_arena takes away",
    ),
    "prepacking": (
        parameter("session.disable_prepacking", "true"),
        "session.disable_prepacking must be 0 or 1, not 'true'",
    ),
    "accelerator": (
        "optimization { execution_accelerators { "
        'cpu_execution_accelerator [ { name: "tpu" } ] } }',
        "cpu_execution_accelerator: unknown accelerator 'tpu'; expected 'openvino'",
    ),
    "library": (
        'model_operations { op_library_filename: [ "libmissing.so" ] }',
        r"no library 'libmissing.so' \(model_operations.op_library_filename\); expected a file",
    ),
    "library_outside": (
        'model_operations { op_library_filename: [ "../../evil.so" ] }',
        "op_library_filename '../../evil.so' .* leads outside the model's folder",
    ),
    "absolute_library": (
        'model_operations { op_library_filename: [ "/nowhere/evil.so" ] }',
        "op_library_filename '/nowhere/evil.so' lies outside of the entry's folder",
    ),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("features")
    write_entry(directory, "plain", doubled(), SIGNATURE)
    for name, text in TUNED.items():
        write_entry(directory, f"tuned_{name}", deep(3, 64), WIDE + text)
    for name, (text, _) in REFUSED.items():
        write_entry(directory, f"refused_{name}", doubled(), SIGNATURE + text)
    return directory


@pytest.fixture(scope="module")
def server(start_shared: StartServer, repository: Path) -> TritonServer:
    options = (
        "--model-control-mode=explicit",
        "--load-model=plain",
        "--backend-config=onnxruntime,default-max-batch-size=6",
    )
    return start_shared(repository, options, {"BRISK_THREADS": "2"})


def directly(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], {"x": x})[0])


@pytest.mark.parametrize("name", TUNED)
def test_a_tuned_entry_answers_as_onnx_runtime_called_directly(
    name: str, repository: Path, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    entry = f"tuned_{name}"
    control.load_model(entry)
    x = np.random.default_rng(5).random((3, 64)).astype(np.float32)
    expected = directly(repository / entry / "1" / "model.onnx", x)
    for _ in range(4):
        np.testing.assert_allclose(client.infer(entry, {"x": x})["y"], expected, rtol=1e-6)
    control.unload_model(entry)


@pytest.mark.parametrize("name", REFUSED)
def test_what_onnx_runtime_cannot_be_told_is_refused_by_name_and_value(
    name: str, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    with pytest.raises(InferenceServerException, match=f"(?s){REFUSED[name][1]}"):
        control.load_model(f"refused_{name}")
    assert client.infer("plain", {"x": np.ones((1, 4), np.float32)})["y"][0, 0] == 2


def said(server: TritonServer, model: str, text: str) -> None:
    def is_said() -> bool:
        lines = server.log.read_text().splitlines()
        return any(f"model '{model}' version 1" in line and text in line for line in lines)

    with TIMED:
        wait_until(is_said, text)


def test_what_that_backend_takes_without_a_word_is_taken_and_said(
    repository: Path,
    server: TritonServer,
    control: http.InferenceServerClient,
    client: InferenceClient,
) -> None:
    text = level(7) + parameter("session.disable_prepackin", "1") + parameter("ep.x", "1")
    write_entry(repository, "odd", doubled(), SIGNATURE + text)
    control.load_model("odd")
    assert client.infer("odd", {"x": np.ones((1, 4), np.float32)})["y"][0, 0] == 2
    said(server, "odd", "optimization.graph.level 7 is taken for 0")
    said(server, "odd", "did you mean 'session.disable_prepacking'?")
    said(server, "odd", "parameters.ep.x has no effect")


def test_an_accelerator_is_answered_for_by_onnx_runtime_s_own_kernels(
    repository: Path,
    server: TritonServer,
    control: http.InferenceServerClient,
    client: InferenceClient,
) -> None:
    text = (
        "optimization { execution_accelerators { "
        'cpu_execution_accelerator [ { name: "openvino" } ] '
        'gpu_execution_accelerator [ { name: "tensorrt" } ] } } '
    )
    write_entry(repository, "accelerated", doubled(), SIGNATURE + text)
    control.load_model("accelerated")
    assert client.infer("accelerated", {"x": np.ones((1, 4), np.float32)})["y"][0, 0] == 2
    said(server, "accelerated", "optimization.execution_accelerators has no effect")


@pytest.mark.parametrize("place", ["version", "entry", "absolute"])
def test_custom_operators_are_computed_by_the_entry_s_library(
    place: str, repository: Path, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    name = f"custom_{place}"
    folder = repository / name
    named = {"absolute": str(folder / "1" / "libscale.so")}.get(place, "libscale.so")
    operations = f'model_operations {{ op_library_filename: [ "{named}" ] }}'
    write_entry(repository, name, scaled(), SIGNATURE + operations)
    compile_library((folder if place == "entry" else folder / "1") / "libscale.so")
    control.load_model(name)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(client.infer(name, {"x": x})["y"], 3 * x + 1)


def test_a_library_that_was_exchanged_is_the_new_one_after_the_next_load(
    repository: Path, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    text = 'model_operations { op_library_filename: [ "libscale.so" ] }'
    folder = write_entry(repository, "exchanged", scaled(), SIGNATURE + text)
    x = np.ones((1, 4), np.float32)
    for factor in (3, 5):
        compile_library(folder / "1" / "libscale.so", factor)
        control.load_model("exchanged")
        assert client.infer("exchanged", {"x": x})["y"][0, 0] == factor + 1


def test_a_library_that_others_may_write_is_refused(
    repository: Path, control: http.InferenceServerClient
) -> None:
    text = 'model_operations { op_library_filename: [ "libscale.so" ] }'
    folder = write_entry(repository, "writable", scaled(), SIGNATURE + text)
    compile_library(folder / "1" / "libscale.so").chmod(0o777)
    with pytest.raises(InferenceServerException, match="has mode 0777"):
        control.load_model("writable")


def test_no_library_is_loaded_where_the_server_forbids_it(
    tmp_path: Path, start_server: StartServer
) -> None:
    text = 'model_operations { op_library_filename: [ "libscale.so" ] }'
    compile_library(write_entry(tmp_path, "scaled", scaled(), SIGNATURE + text) / "libscale.so")
    write_entry(tmp_path, "plain", doubled(), SIGNATURE)
    options = ["--model-control-mode=explicit", "--load-model=plain"]
    server = start_server(tmp_path, options, {"BRISK_CUSTOM_OPS": "0"})
    with http.InferenceServerClient(server.endpoints.http) as control:
        with pytest.raises(InferenceServerException) as refused:
            control.load_model("scaled")
        assert control.is_model_ready("plain")
    expected = r"names 'libscale\.so', and BRISK_CUSTOM_OPS=0 .*runs code of whoever writes"
    assert re.search(expected, str(refused.value))


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_model_of_onnx_runtime_s_own_format_is_served(
    is_complete: bool,
    repository: Path,
    control: http.InferenceServerClient,
    client: InferenceClient,
) -> None:
    name = f"own_format_{is_complete}".lower()
    text = 'default_model_filename: "model.ort" '
    signature = WIDE if is_complete else 'backend: "onnxruntime" '
    folder = write_entry(repository, name, deep(3, 64), signature + text) / "1"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    (folder / "model.onnx").unlink()
    control.load_model(name)
    x = np.random.default_rng(5).random((3, 64)).astype(np.float32)
    expected = directly(folder / "model.ort", x)
    np.testing.assert_allclose(client.infer(name, {"x": x})["y"], expected, rtol=1e-6)


def test_the_default_batch_size_is_that_of_the_server_s_command_line(
    repository: Path, control: http.InferenceServerClient
) -> None:
    write_entry(repository, "completed", doubled(), 'backend: "onnxruntime"')
    control.load_model("completed")
    config = control.get_model_config("completed")
    assert config["max_batch_size"] == 6
    assert "dynamic_batching" in config


def test_a_directory_holds_the_model_and_its_data(
    repository: Path, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    folder = write_entry(repository, "directory", deep(3, 64), WIDE) / "1"
    model = onnx.load(folder / "model.onnx")
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").mkdir()
    path = folder / "model.onnx" / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    assert (path.parent / "weights.bin").exists()
    control.load_model("directory")
    x = np.random.default_rng(5).random((3, 64)).astype(np.float32)
    np.testing.assert_allclose(client.infer("directory", {"x": x})["y"], directly(path, x))
