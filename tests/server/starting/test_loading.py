"""Loads that must fail clearly, unloads that give everything back, entries of every form."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tritonclient import http
from tritonclient.utils import InferenceServerException

from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.telemetry.observer import Observer
from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.runtime.external_data import LOCATION, REPLACE, write_external
from support.runtime.runtime_processes import processes_started_in
from support.server.entries import deep, doubled, identity, make_model, write_entry
from support.server.running import StartServer, runtime_directory
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timing, pytest.mark.beside]

SIGNATURE = (
    'input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] '
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]'
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("loading")
    write_entry(directory, "good", doubled())
    return directory


@pytest.fixture(scope="module")
def server(start_shared: StartServer, repository: Path) -> TritonServer:
    options = (
        "--model-control-mode=explicit",
        "--load-model=good",
        "--cache-config=local,size=1048576",
    )
    return start_shared(repository, options)


@pytest.fixture(autouse=True)
def good_goes_on(client: InferenceClient) -> Iterator[None]:
    """Whatever a test does to its own entry, another one still answers."""
    yield
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(client.infer("good", {"x": x})["y"], 2 * x)


def external_model(location: str) -> onnx.ModelProto:
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, (4,))],
        [("y", TensorProto.FLOAT, (4,))],
        [("w", np.ones(4, np.float32))],
    )
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", location
    return model


def unknown_operator() -> onnx.ModelProto:
    return make_model(
        [helper.make_node("Frobnicate", ["x"], ["y"], name="strange")],
        [("x", TensorProto.FLOAT, (4,))],
        [("y", TensorProto.FLOAT, (4,))],
    )


BROKEN: dict[str, tuple[onnx.ModelProto | bytes, str, str]] = {
    "not_onnx": (b"this is no model at all, just text", 'backend: "brisk"', "not.*ONNX"),
    "empty": (b"", 'backend: "brisk"', "empty"),
    "truncated": (deep().SerializeToString()[:-1000], 'backend: "brisk"', "model.onnx"),
    "unknown_operator": (unknown_operator(), 'backend: "brisk"', "strange.*Frobnicate"),
    "no_external_data": (external_model("weights.bin"), 'backend: "brisk"', "weights.bin"),
    "path_traversal": (external_model("../../good/1/model.onnx"), 'backend: "brisk"', "outside"),
    "misspelt": (
        doubled(),
        'backend: "brisk" parameters { key: "brisk_clas" value { string_value: "realtime" } } '
        'parameters { key: "brisk_max_queue_size" value { string_value: "many" } }',
        r"brisk_max_queue_size must be .*'many'; .*brisk_clas'.*'brisk_class'",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_entry_is_refused_with_the_reason(
    name: str, repository: Path, control: http.InferenceServerClient
) -> None:
    model, config, reason = BROKEN[name]
    write_entry(repository, name, model, config)
    with pytest.raises(InferenceServerException, match=f"(?is){reason}"):
        control.load_model(name)


def test_an_unloaded_model_gives_its_memory_back(
    server: TritonServer, repository: Path, control: http.InferenceServerClient
) -> None:
    weights = np.random.default_rng(0).standard_normal((4096, 6000)).astype(np.float32)
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", TensorProto.FLOAT, ("batch", 4096))],
        [("y", TensorProto.FLOAT, ("batch", 6000))],
        [("w", weights)],
    )
    write_entry(repository, "large", model)

    def resident_bytes() -> int:
        total = 0
        for process in processes_started_in(runtime_directory(server)):
            pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
        return total

    before = resident_bytes()

    def loaded() -> bool:
        return resident_bytes() - before > 0.8 * weights.nbytes

    for _ in range(3):
        control.load_model("large")
        with TIMED:
            wait_until(loaded, "the weights in memory")  # loads go on behind
        control.unload_model("large")
        wait_until_gone(control, "large")
    # Given back by the load lane, behind what else it does just then. Loads that kept their
    # weights show as three times their size, the last one as one time; the half is room for what
    # server, stubs and allocators take for themselves meanwhile.
    wait_until(lambda: resident_bytes() - before < 0.5 * weights.nbytes, "the memory")


def wait_until_gone(control: http.InferenceServerClient, name: str) -> None:
    def is_gone() -> bool:
        states = {m["name"]: m.get("state") for m in control.get_model_repository_index()}
        return states.get(name) == "UNAVAILABLE"

    with TIMED:
        wait_until(is_gone, f"the end of {name}", patience_s=20)
    time.sleep(0.5)  # the memory is given back beside the unload, not before it


def test_a_changed_model_file_is_served_after_a_reload(
    repository: Path, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    def plus(addend: float) -> onnx.ModelProto:
        return make_model(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            [("x", TensorProto.FLOAT, (2,))],
            [("y", TensorProto.FLOAT, (2,))],
            [("w", np.full(2, addend, np.float32))],
        )

    directory = write_entry(repository, "changing", plus(1))
    x = np.zeros(2, np.float32)
    control.load_model("changing")
    assert client.infer("changing", {"x": x})["y"].tolist() == [1, 1]
    onnx.save(plus(2), directory / "1" / "model.onnx")
    (directory / "config.pbtxt").write_text('backend: "brisk" # changed')
    control.load_model("changing")
    assert client.infer("changing", {"x": x})["y"].tolist() == [2, 2]


def test_both_versions_of_an_entry_answer(
    repository: Path, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    directory = write_entry(
        repository, "versions", doubled(), 'backend: "brisk" version_policy { all {} }'
    )
    (directory / "2").mkdir()
    onnx.save(identity(TensorProto.FLOAT, ("batch", 4)), directory / "2" / "model.onnx")
    (directory / "config.pbtxt").write_text(
        f'backend: "brisk" version_policy {{ all {{}} }} max_batch_size: 4 {SIGNATURE}'
    )
    control.load_model("versions")
    x = np.ones((1, 4), np.float32)
    assert client.infer("versions", {"x": x}, version=1)["y"][0, 0] == 2
    assert client.infer("versions", {"x": x}, version=2)["y"][0, 0] == 1
    assert client.infer("versions", {"x": x})["y"][0, 0] == 1


def test_external_data_beside_the_model_is_read(
    repository: Path, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    directory = write_entry(repository, "external", external_model("weights.bin"))
    np.full(4, 3, np.float32).tofile(directory / "1" / "weights.bin")
    control.load_model("external")
    assert client.infer("external", {"x": np.zeros(4, np.float32)})["y"].tolist() == [3] * 4


@pytest.mark.parametrize("way", REPLACE)
def test_external_data_that_was_replaced_answers_after_a_load(
    way: str, repository: Path, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    name = f"replaced_{way}"
    version = write_entry(repository, name, external_model("unused")) / "1"
    write_external(version, "initialiser")
    x = np.zeros((2, 4), np.float32)
    control.load_model(name)
    assert (client.infer(name, {"x": x})["y"] == 1).all()
    REPLACE[way](version / LOCATION, 5)
    control.load_model(name)
    assert (client.infer(name, {"x": x})["y"] == 5).all()


def test_the_response_cache_answers_the_second_time(
    repository: Path, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    config = f'backend: "brisk" max_batch_size: 8 response_cache {{ enable: true }} {SIGNATURE}'
    write_entry(repository, "cached", doubled(), config)
    control.load_model("cached")
    x = np.full((1, 4), 5, np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(client.infer("cached", {"x": x})["y"], 2 * x)
    statistics = control.get_inference_statistics("cached")["model_stats"][0]["inference_stats"]
    assert int(statistics["cache_hit"]["count"]) == 2


def test_optional_inputs_take_their_default(
    repository: Path, control: http.InferenceServerClient, client: InferenceClient
) -> None:
    model = make_model(
        [helper.make_node("Add", ["x", "bias"], ["y"])],
        [("x", TensorProto.FLOAT, (2,)), ("bias", TensorProto.FLOAT, (2,))],
        [("y", TensorProto.FLOAT, (2,))],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.full(2, 7, np.float32), "bias"))
    config = (
        'backend: "brisk" '
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }, '
        '{ name: "bias" data_type: TYPE_FP32 dims: [ 2 ] optional: true } ] '
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]'
    )
    write_entry(repository, "optional", model, config)
    control.load_model("optional")
    x = np.ones(2, np.float32)
    assert client.infer("optional", {"x": x})["y"].tolist() == [8, 8]
    assert client.infer("optional", {"x": x, "bias": x})["y"].tolist() == [2, 2]


def deaths(server: TritonServer) -> list[str]:
    """The stubs' deaths among the worker's incidents."""
    with Observer(RuntimePaths(runtime_directory(server), "cpu"), Role.FOREGROUND) as observer:
        told = [each.what for each in observer.status().incidents]
    return [what for what in told if "has died" in what]


def stubs_of(server: TritonServer, name: str) -> list[int]:
    """The processes that Triton's commands for the entry's stubs have made."""
    found = []
    for process in processes_started_in(runtime_directory(server)):
        with contextlib.suppress(OSError):  # it has ended
            words = Path(f"/proc/{process}/cmdline").read_bytes()
            if f"/{name}/1/".encode() in words:
                found.append(process)
    return found


def test_a_stub_that_died_is_told_of_and_one_that_was_unloaded_or_refused_is_not(
    repository: Path,
    server: TritonServer,
    control: http.InferenceServerClient,
    client: InferenceClient,
) -> None:
    one = 'backend: "brisk" instance_group [ { count: 1 kind: KIND_CPU } ]'
    write_entry(repository, "mortal", doubled(), one)
    write_entry(
        repository, "refused", doubled(), f'backend: "brisk" {SIGNATURE}'.replace("4", "5")
    )
    control.load_model("mortal")
    with pytest.raises(InferenceServerException, match="5"):
        control.load_model("refused")
    control.unload_model("mortal")
    wait_until(lambda: not stubs_of(server, "mortal"), "the end of the unloaded stub")
    control.load_model("mortal")
    for stub in stubs_of(server, "mortal"):
        os.kill(stub, signal.SIGKILL)
    with TIMED:
        wait_until(lambda: bool(deaths(server)), "the incident")
    assert deaths(server) == [
        "the stub of model 'mortal' has died: its instance is gone until the entry is unloaded "
        "and loaded again"
    ]
    control.unload_model("mortal")
    control.load_model("mortal")
    x = np.ones((1, 4), np.float32)
    np.testing.assert_array_equal(client.infer("mortal", {"x": x})["y"], 2 * x)


def test_a_relative_repository_path_is_the_servers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_server: StartServer
) -> None:
    write_entry(tmp_path / "models", "relative", doubled())
    monkeypatch.chdir(tmp_path)
    server = start_server(Path("models"))
    with InferenceClient(server.endpoints.http, Transport.HTTP) as client:
        assert client.infer("relative", {"x": np.ones((1, 4), np.float32)})["y"][0, 0] == 2
