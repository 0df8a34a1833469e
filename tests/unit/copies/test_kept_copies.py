"""A copy that a stub has found stays for as long as the stub lives, whatever its worker does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from brisk.copies.manifest import write_manifest
from brisk.copies.remote import MANIFEST, WHOLE, whole_note
from brisk.sourcing.room import kept_copies, make_copy, remove
from support.remote.published import publish
from support.waiting import PATIENCE_S, wait_until

FINDING = """
import sys
from brisk.stub.config.entry import read_entry

repository, config, keeps = sys.argv[1:]
arguments = {
    "model_name": "m",
    "model_version": "1",
    "model_repository": repository,
    "model_config": config,
    "model_instance_kind": "CPU",
}
print(read_entry(arguments, keeps=bool(keeps)).model.path, flush=True)
sys.stdin.read()
"""

STUB = """
import sys, types

utils = types.ModuleType("triton_python_backend_utils")
utils.TritonModelException = RuntimeError
utils.Logger = types.SimpleNamespace(log_error=print, log_warn=print, log_info=print)
sys.modules[utils.__name__] = utils
import brisk.stub.backend as backend

backend.hide_region = backend.end_with_server = backend.command_line = lambda: None
backend.attend_launchers = lambda arguments, niceness: None

def found(place, model, *more):
    print(model.path, flush=True)
    sys.stdin.read()
    sys.exit()

backend.RuntimeClient = found
repository, config, _ = sys.argv[1:]
backend.ModelInstance(
    {
        "model_name": "m",
        "model_version": "1",
        "model_repository": repository,
        "model_config": config,
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0",
    }
)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole copy, last used long ago, of an entry in ``tmp_path / "entry"``."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "run"))
    published = publish(tmp_path / "published", 400_000)
    text = write_manifest(published.manifest)
    folder = tmp_path / "cache" / "remote" / published.sha256
    make_copy(folder, text, published.manifest)
    (folder / WHOLE).write_bytes(whole_note(Path("1/model.onnx"), text))
    os.utime(folder / MANIFEST, (1000.0, 1000.0))
    version = tmp_path / "entry" / "1"
    version.mkdir(parents=True)
    remote = {"url": "http://127.0.0.1:1/manifest.json", "sha256": published.sha256}
    (version / "model.remote").write_text(json.dumps(remote))
    return folder


@contextmanager
def process_of(code: str, folder: Path, *, keeps: bool) -> Iterator[None]:
    """Yield while a process lives that has found the entry's model."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder.parents[2] / "entry"), "{}", "1" * keeps],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == f"{folder / '1' / 'model.onnx'}\n"
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(PATIENCE_S)


@pytest.mark.parametrize("code", [FINDING, STUB], ids=["entry", "stub"])
def test_a_stub_keeps_the_copy_that_it_has_found_and_has_used_it_now(
    folder: Path, code: str
) -> None:
    began_s = time.time()
    with process_of(code, folder, keeps=True):
        (copy,) = kept_copies(folder.parent)
        assert copy.is_held
        assert copy.used_s > began_s - 1
        assert not remove(folder)
    wait_until(lambda: remove(folder), "its removal")


def test_who_only_looks_keeps_nothing(folder: Path) -> None:
    with process_of(FINDING, folder, keeps=False):
        (copy,) = kept_copies(folder.parent)
        assert not copy.is_held
        assert (copy.folder / MANIFEST).stat().st_mtime == 1000.0
        assert remove(folder)
