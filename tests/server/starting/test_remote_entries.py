"""Entries whose model lies on a web server, in a real Triton that has nothing else of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tritonclient import http
from tritonclient.utils import InferenceServerException

from brisk.cli.views.checking import PROBLEM, check_repository
from brisk.copies.manifest import write_manifest
from brisk.publishing.describing import describe
from brisk.publishing.writing import publish, remote_text
from brisk_client.inference import InferenceClient, Transport
from support.models.segment_models import chain, whole
from support.remote.registries import RegistryServer
from support.server.running import StartServer
from support.server.serve_command import Serving

pytestmark = [pytest.mark.server]

WIDTH = 256


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryServer]:
    (tmp_path / "published").mkdir()
    with closing(RegistryServer(tmp_path / "published")) as made:
        yield made


def write_remote(
    repository: Path, name: str, text: str, config: str | None = 'backend: "brisk"\n'
) -> None:
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.remote").write_text(text)
    if config is not None:
        (folder.parent / "config.pbtxt").write_text(config)


def test_an_entry_without_a_model_is_completed_served_and_asked_while_its_model_arrives(
    tmp_path: Path, start_server: StartServer, private_cache: None, registry: RegistryServer
) -> None:
    model = chain(tmp_path / "model.onnx", width=WIDTH)
    described = describe(model, 2, with_form=False)
    publish(described, str(registry.folder / "m"))
    manifest = write_manifest(described.manifest)
    repository = tmp_path / "repository"
    write_remote(repository, "there", remote_text(f"{registry.url}/m", manifest))
    write_remote(repository, "gone", remote_text(f"{registry.url}/gone", manifest))
    write_remote(repository, "other", remote_text(f"{registry.url}/m", manifest + b" "))
    write_remote(repository, "none", '{"address": "here"}')
    registry.hold("/m/model.onnx", 1 << 20)
    server = start_server(repository, ("--model-control-mode=explicit",))
    values = np.random.default_rng(0).standard_normal((2, WIDTH)).astype("f4")
    control = http.InferenceServerClient(server.endpoints.http, network_timeout=60.0)
    for name, reason in (
        ("gone", rf"{re.escape(registry.url)}/gone/\S+ answers 404"),
        ("other", "SHA-256"),
        ("none", 'expected {"url"'),
    ):
        with pytest.raises(InferenceServerException, match=reason):
            control.load_model(name)
    control.load_model("there")  # READY while its bytes are held back
    told = control.get_model_config("there")
    control.close()
    assert [tensor["dims"] for tensor in told["input"]] == [[WIDTH]]
    assert told["max_batch_size"] > 0
    with InferenceClient(server.endpoints.http, Transport.HTTP) as client:
        registry.let_go()
        answer = client.infer("there", {"x": values})
    np.testing.assert_allclose(answer["y"], whole(model, {"x": values})["y"], rtol=1e-3, atol=1e-4)


def test_an_entry_of_nothing_but_model_remote_is_served_and_looked_at(
    tmp_path: Path, serve: Serving, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of nothing but ``model.onnx`` is: ``brisk serve`` completes what Triton reads."""
    model = chain(tmp_path / "model.onnx", width=WIDTH)
    described = describe(model, 2, with_form=False)
    publish(described, str(registry.folder / "m"))
    text = remote_text(f"{registry.url}/m", write_manifest(described.manifest))
    repository = tmp_path / "repository"
    write_remote(repository, "bare", text, config=None)
    values = np.random.default_rng(0).standard_normal((2, WIDTH)).astype("f4")
    with serve(tmp_path, [repository]) as served:
        monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.setenv("BRISK_RUNTIME_DIR", str(served.runtime))
        with InferenceClient(served.url_of("http"), Transport.HTTP) as client:
            answer = client.infer("bare", {"x": values})
        np.testing.assert_allclose(
            answer["y"], whole(model, {"x": values})["y"], rtol=1e-3, atol=1e-4
        )
        found = list(check_repository(repository))
    assert [remark.severity for remark in found if remark.severity == PROBLEM] == []
