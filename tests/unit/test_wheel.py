"""What `pip install` of the wheel gives: the commands and the backend, without extras."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import brisk
from brisk.fork_server.build import find_compiler
from brisk.fork_server.start import PRELOAD
from brisk.protocol.stub_process import STUB
from support.models.segment_models import chain

ROOT = Path(__file__).resolve().parents[2]
OF_EXTRAS = ("PIL", "imageio_ffmpeg", "matplotlib", "openvino", "psutil", "sklearn", "torch")
"""Packages that only extras bring: the test's environment behaves as if they were not there."""

HIDING = f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OF_EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
import importlib.util
_find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name.partition(".")[0] in {OF_EXTRAS!r} else _find_spec(name, package)
)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, and this one's packages but for those of extras."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("pyproject.toml", "setup.py", "README.md"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    for name in ("triton_backend", "client", "bench"):
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*pip, "wheel", "-q", *options, "-w", str(folder), str(source)], check=True, timeout=120
    )
    (wheel,) = folder.glob("brisk_triton-*.whl")
    made = folder / "environment"
    venv.create(made, with_pip=False)
    python = made / "bin" / "python"
    subprocess.run(
        [*pip, "--python", str(python), "install", "-q", "--no-deps", str(wheel)],
        check=True,
        timeout=120,
    )
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = made / "lib" / version / "site-packages"
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (packages / "sitecustomize.py").write_text(HIDING)
    return made


def run(
    environment: Path, folder: Path, *arguments: str, **changed: str
) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables |= {
        "BRISK_CACHE_DIR": str(folder / "cache"),
        "BRISK_RUNTIME_DIR": str(folder / "run"),
        "BRISK_PYTHON": str(environment / "bin" / "python"),
        **changed,
    }
    return subprocess.run(
        [str(environment / "bin" / "brisk"), *arguments],
        env=variables,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    (tmp_path / "model" / "1").mkdir(parents=True)
    chain(tmp_path / "model" / "1" / "model.onnx", layers=2, width=64)
    return tmp_path / "model"


def test_commands_do_without_what_only_extras_bring(environment: Path, entry: Path) -> None:
    folder = entry.parent
    for arguments in (
        ["--help"],
        ["bench"],
        ["config", str(entry)],
        ["explain", str(entry)],
        ["prepare", str(entry), "--threads", "1"],
    ):
        done = run(environment, folder, *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    assert (entry / "config.pbtxt").is_file()
    assert list((folder / "cache").rglob("*.segments"))


def test_a_runtime_of_the_wheel_serves_a_model_without_torch(
    environment: Path, entry: Path
) -> None:
    done = run(environment, entry.parent, "trace", str(entry))
    assert done.returncode == 0, done.stderr
    assert "no picture: pip install 'brisk-triton[bench]'" in done.stdout
    recorded = json.loads((entry.parent / "model.trace.json").read_text())
    assert recorded["traceEvents"]


def write_python_backend(directory: Path) -> None:
    (directory / "python").mkdir()
    for name in ("libtriton_python.so", "triton_python_backend_stub"):
        (directory / "python" / name).touch()


def test_the_backend_is_installed_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    write_python_backend(tmp_path)
    done = run(environment, tmp_path, "install", "--backend-directory", str(tmp_path), "--copy")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "brisk" / "model.py").is_file()
    assert (tmp_path / "brisk" / "triton_python_backend_utils.py").is_file()
    assert (tmp_path / "brisk" / "brisk" / "stub" / "backend.py").is_file()


@pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
def test_launchers_come_with_the_wheel(environment: Path, tmp_path: Path) -> None:
    """A first start compiles nothing; any Python of the platform takes the wheel."""
    compilers = tmp_path / "no-compilers"
    compilers.mkdir()
    write_python_backend(tmp_path)
    options = ["--backend-directory", str(tmp_path), "--copy"]
    done = run(environment, tmp_path, "install", *options, PATH=str(compilers))
    assert done.returncode == 0, done.stderr
    placed = {each.name: each for each in (tmp_path / "brisk").iterdir()}
    for name in (PRELOAD, STUB):
        assert placed[name].read_bytes() == (environment / "share" / "brisk" / name).read_bytes()
    assert not list((tmp_path / "cache").rglob("native/*"))


def test_the_client_has_a_wheel_of_its_own(tmp_path: Path) -> None:
    """It has the version of the server's package, and brings nothing of that."""
    source = tmp_path / "client"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    shutil.copytree(ROOT / "client", source, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q"]
    options = ["--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    subprocess.run([*pip, *options, str(source)], check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"brisk_client-{brisk.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
    assert {"brisk_client/urgency.py", "brisk_client/workload/runner.py"} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"brisk_client"}
    assert re.findall(r"^Requires-Dist: (\w+)", text, re.MULTILINE) == ["numpy", "tritonclient"]


def test_what_needs_an_extra_says_which(environment: Path, entry: Path) -> None:
    data = entry.parent / "inputs.npz"
    data.write_bytes(b"")
    done = run(environment, entry.parent, "caches", "train", str(entry), "--data", str(data))
    assert done.returncode == 1
    assert "this needs the package 'torch'" in done.stderr
    assert "pip install 'brisk-triton[train]'" in done.stderr
    assert "Traceback" not in done.stderr
