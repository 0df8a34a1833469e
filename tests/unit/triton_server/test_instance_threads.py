"""Which servers have few threads for each instance: those whose repositories have no Python model
of a user's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from brisk.triton.instance_threads import THREADS, has_python_models, with_few_threads
from support.unprivileged import UNPRIVILEGED, of_mode

OURS = ("brisk", "onnxruntime")


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    """Brisk's backend, which is one in Python like `vllm`, and one in C++."""
    folder = tmp_path / "backends"
    for name in ("brisk", "onnxruntime", "vllm"):
        (folder / name).mkdir(parents=True)
        (folder / name / "model.py").touch()
    (folder / "tensorrt").mkdir()
    (folder / "tensorrt" / "libtriton_tensorrt.so").touch()
    return folder


def write(repository: Path, name: str, config: str | None, file: str = "model.onnx") -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / file).touch()
    if config is not None:
        (repository / name / "config.pbtxt").write_text(config)


def test_triton_s_options_get_a_number_unless_they_have_one() -> None:
    added = f"--backend-config=python,thread-pool-size={THREADS}"
    assert with_few_threads(["--log-verbose=1"]) == ("--log-verbose=1", added)
    for words in (
        ["--backend-config=python,thread-pool-size=32"],
        ["--backend-config", "python,thread-pool-size=32"],
    ):
        assert with_few_threads(words) == tuple(words)


def test_entries_of_brisk_and_of_backends_in_another_language_are_no_python_models(
    tmp_path: Path, backends: Path
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write(one, "named", 'backend: "brisk"')
    write(one, "by_platform", 'platform: "onnxruntime_onnx"')
    write(one, "bare", None)
    write(other, "steps", 'platform: "ensemble" ensemble_scheduling {}', "none")
    write(other, "engine", 'backend: "tensorrt"', "model.plan")
    (other / "file").touch()
    assert not has_python_models([one, other, tmp_path / "missing"], backends, OURS)


@pytest.mark.parametrize(
    ("config", "file"),
    [
        ('backend: "python"', "model.py"),
        ("backend: 'python' default_model_filename: 'own.py'", "own.py"),
        ('backend: "vllm"', "model.json"),
        (None, "model.py"),
    ],
)
def test_one_python_model_in_any_repository_counts(
    tmp_path: Path, backends: Path, config: str | None, file: str
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write(one, "named", 'backend: "brisk"')
    write(other, "theirs", config, file)
    assert has_python_models([one, other], backends, OURS)


def test_a_version_that_cannot_be_read_is_no_python_model(tmp_path: Path, backends: Path) -> None:
    write(tmp_path / "one", "named", 'backend: "brisk"')
    looking = (
        "import sys; from pathlib import Path\n"
        "from brisk.triton.instance_threads import has_python_models\n"
        f"print(has_python_models([Path(sys.argv[1])], Path(sys.argv[2]), {OURS!r}))"
    )
    words = [sys.executable, "-c", looking, str(tmp_path / "one"), str(backends)]
    with of_mode(tmp_path / "one" / "named" / "1", 0):
        done = subprocess.run([*UNPRIVILEGED, *words], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_configuration_that_cannot_be_read_counts_as_a_python_model_s(
    tmp_path: Path, backends: Path
) -> None:
    write(tmp_path / "one", "named", None)
    loop = tmp_path / "one" / "named" / "config.pbtxt"
    loop.symlink_to("config.pbtxt")
    assert has_python_models([tmp_path / "one"], backends, OURS)
