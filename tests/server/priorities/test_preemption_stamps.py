"""What `brisk bench preempt` needs of real servers: stamps of a request's way, and peers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from brisk.triton.locate import ServerInstallation
from brisk_bench.disb.networks import build_bert, build_densenet
from brisk_bench.disb.served import TRACED_AT_ONCE, UrgentClient, asked_without_pause
from brisk_bench.disb.sides import save_models, write_brisk
from brisk_bench.harness.served_server import benchmark_server
from brisk_client.inference import InferenceClient, Transport

pytestmark = [pytest.mark.server, pytest.mark.timing, pytest.mark.beside]

OPTIONS = ("--disable-auto-complete-config",)


def test_each_request_has_its_way_from_the_client_to_its_first_segment(tmp_path: Path) -> None:
    """More than one recording holds, beside best-effort work of another process."""
    models = {"urgent": build_densenet(16, (2, 2, 2, 2)), "other": build_bert(96, 16, 48)}
    files = save_models(tmp_path / "models", models)
    write_brisk(tmp_path / "served", files, [("urgent", "realtime"), ("other", "besteffort")])
    with (
        benchmark_server(tmp_path / "served", {}, OPTIONS) as server,
        UrgentClient(server, "urgent_rt", seed=1) as client,
        asked_without_pause(server.grpc, "other_be"),
    ):
        client.ask_after_pauses(5)
        ways = client.ask_traced(TRACED_AT_ONCE + 3)
    assert len(ways) == TRACED_AT_ONCE + 3
    for way in ways:
        assert way.from_client_ns > way.from_execute_ns > way.in_worker_ns > 0
        assert way.from_client_ns < way.asked.total_ns


def test_a_peer_s_folder_takes_brisk_s_place_for_entries_of_onnx_runtime(
    tmp_path: Path, installation: ServerInstallation
) -> None:
    """Triton's C++ backend is not there to test with: its Python backend under that name is,
    with a file of its own that says what to answer.
    """
    peer, version = tmp_path / "peer" / "onnxruntime", tmp_path / "served" / "twice" / "1"
    peer.mkdir(parents=True)
    version.mkdir(parents=True)
    library, module, stub = installation.python_backend
    for file, name in ((library, "libtriton_onnxruntime.so"), (module, ""), (stub, "")):
        shutil.copy(file, peer / (name or file.name))
    (version.parent / "config.pbtxt").write_text(
        'backend: "onnxruntime" max_batch_size: 0 '
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ] '
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] } ] '
    )
    (peer / "model.py").write_text(
        "import triton_python_backend_utils as pb_utils\n\n\n"
        "class TritonPythonModel:\n"
        "    def execute(self, requests):\n"
        "        found = [pb_utils.get_input_tensor_by_name(each, 'x') for each in requests]\n"
        "        tensors = [pb_utils.Tensor('y', 2 * each.as_numpy()) for each in found]\n"
        "        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]\n"
    )
    x = np.array([1, 2, 3], np.float32)
    with (
        benchmark_server(tmp_path / "served", {}, OPTIONS, peer=peer) as server,
        InferenceClient(server.grpc, Transport.GRPC) as client,
    ):
        assert client.infer("twice", {"x": x})["y"].tolist() == [2.0, 4.0, 6.0]
