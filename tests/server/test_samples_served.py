"""The sample entries, served as they are and asked through Triton's own clients."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from brisk.triton.launch import TritonServer
from brisk_bench.demo import query_samples
from brisk_bench.samples.expectations import read_expectations
from brisk_client.inference import InferenceClient, Transport
from support.server.running import SAMPLES, StartServer, private_runtime

pytestmark = [pytest.mark.server, pytest.mark.timing, pytest.mark.beside]


def test_every_sample_answers_right_over_both_transports(sample_server: TritonServer) -> None:
    answers = query_samples(
        SAMPLES,
        http_url=sample_server.endpoints.http or "",
        grpc_url=sample_server.endpoints.grpc or "",
    )
    assert [f"{each.model}: {each.problem}" for each in answers if not each.right] == []
    assert {each.model for each in answers} == {
        "digits_cnn",
        "encoder",
        "mlp",
        "resnet18_ort",
        "resnet50",
    }
    assert len(answers) == 12  # six model versions, two transports


@pytest.mark.parametrize("transport", list(Transport))
def test_the_newest_version_answers_when_none_is_named(
    sample_server: TritonServer, transport: Transport
) -> None:
    newest = read_expectations(SAMPLES / "digits_cnn")[-1]
    endpoints = sample_server.endpoints
    url = endpoints.http if transport is Transport.HTTP else endpoints.grpc
    with InferenceClient(url or "", transport) as client:
        outputs = client.infer("digits_cnn", newest.inputs, outputs=["logits"])
    assert list(outputs) == ["logits"]
    assert outputs["logits"] == pytest.approx(newest.outputs["logits"], rel=1e-3, abs=1e-4)


def test_complete_entries_load_without_auto_completion(
    start_server: StartServer, tmp_path: Path
) -> None:
    """What ``brisk config`` writes is enough for the server, even for the bare entry."""
    entry = tmp_path / "repository" / "mlp"
    entry.mkdir(parents=True)
    (entry / "1").symlink_to(SAMPLES / "mlp" / "1")  # the version may be a link, its files not
    subprocess.run(
        [sys.executable, "-m", "brisk.cli", "config", str(entry)], check=True, timeout=60
    )
    server = start_server(entry.parent, options=["--disable-auto-complete-config"])
    [expectation] = read_expectations(SAMPLES / "mlp")
    with InferenceClient(server.endpoints.http or "", Transport.HTTP) as client:
        outputs = client.infer("mlp", expectation.inputs)
    assert outputs["probabilities"] == pytest.approx(
        expectation.outputs["probabilities"], rel=1e-3, abs=1e-4
    )


def test_the_demonstration_ends_with_success_and_shows_every_answer(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "brisk.cli", "demo", "--once"]
    command += ["--repository", str(SAMPLES), "--build", str(tmp_path)]
    with private_runtime() as runtime:
        answer = subprocess.run(
            command,
            env={**os.environ, "BRISK_RUNTIME_DIR": str(runtime)},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "12 of 12 answers are right" in answer.stdout
