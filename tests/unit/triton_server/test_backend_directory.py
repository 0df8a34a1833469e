"""Laying out backend directories."""

from concurrent.futures import ThreadPoolExecutor
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.fork_server.build import LAUNCHER, place_launchers
from brisk.fork_server.start import PRELOAD, SERVER_PRELOAD
from brisk.triton.backend_directory import (
    STUB_FILES,
    assemble,
    backend_source,
    default_directory,
    install,
)
from brisk.triton.locate import LIBRARY, STUB, ServerInstallation, locate_server


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """A deployment's backend directory with the Python and another ONNX backend."""
    for file in (f"python/{LIBRARY}", f"python/{STUB}", "onnxruntime/libtriton_onnxruntime.so"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    return tmp_path


def test_an_assembled_directory_has_the_python_backend_and_brisk_under_both_names(
    tmp_path: Path,
) -> None:
    installation = locate_server()
    directory = assemble(tmp_path / "backends", installation)
    for file in installation.python_backend:
        copied = directory / "python" / file.name
        assert not copied.is_symlink()  # Triton refuses a library whose real path is elsewhere
        assert copied.read_bytes() == file.read_bytes()
    for name in ("brisk", "onnxruntime"):
        placed = tuple((directory / name / each).resolve() for each in STUB_FILES)
        assert placed == backend_source()[:-1]
        assert (directory / name / "brisk" / "errors.py").is_file()


def test_assembling_twice_changes_nothing_and_mends_what_points_elsewhere(tmp_path: Path) -> None:
    installation = locate_server()
    assemble(tmp_path, installation)
    link = tmp_path / "brisk" / "brisk"
    before = link.lstat().st_ino
    assemble(tmp_path, installation)
    assert link.lstat().st_ino == before
    link.unlink()
    link.symlink_to("/nonexistent")
    assemble(tmp_path, installation)
    assert (link / "errors.py").is_file()


def test_several_processes_may_assemble_one_directory_at_once(tmp_path: Path) -> None:
    installation = locate_server()
    with ThreadPoolExecutor(8) as threads:
        results = [threads.submit(assemble, tmp_path, installation) for _ in range(32)]
    assert {result.result() for result in results} == {tmp_path}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["brisk", "onnxruntime", "python"]
    placed = sorted(path.name for path in (tmp_path / "brisk").iterdir())
    compiled = [LAUNCHER, PRELOAD, SERVER_PRELOAD] if place_launchers([tmp_path / "brisk"]) else []
    assert placed == sorted(["__pycache__", "brisk", *STUB_FILES, *compiled])


def test_the_other_backends_of_a_system_server_stay_usable(tmp_path: Path) -> None:
    wheel = locate_server()
    system = tmp_path / "system"
    for name in ("python", "onnxruntime", "tensorrt"):
        (system / name).mkdir(parents=True)
    installation = ServerInstallation(
        executable=wheel.executable,
        python_backend=wheel.python_backend,
        backends=system,
        caches=None,
        library_path=(),
    )
    directory = assemble(tmp_path / "assembled", installation, names=("brisk",))
    assert (directory / "tensorrt").resolve() == system / "tensorrt"
    assert (directory / "onnxruntime").resolve() == system / "onnxruntime"
    assert not (directory / "python").is_symlink()


def test_default_directories_differ_by_the_backend_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", "/cache")
    installation = locate_server()
    one = default_directory(installation, ("brisk",))
    both = default_directory(installation, ("brisk", "onnxruntime"))
    assert one != both
    assert one.is_relative_to("/cache")


@pytest.mark.parametrize("copy", [True, False])
def test_installing_puts_the_backend_beside_the_others(deployment: Path, copy: bool) -> None:
    target = install(deployment, copy=copy)
    assert target == deployment / "brisk"
    assert (target / "brisk" / "errors.py").is_file()
    assert (target / "brisk").is_symlink() != copy
    assert all((target / name).is_symlink() != copy for name in STUB_FILES)
    for file in (target / "model.py", target / "brisk" / "stub" / "backend.py"):
        assert Path(cache_from_source(str(file))).is_file()
    install(deployment, copy=not copy)
    assert (target / "brisk").is_symlink() == copy


def test_another_backend_is_moved_aside_only_when_forced(deployment: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"another backend; --force moves it"):
        install(deployment, name="onnxruntime")
    install(deployment, name="onnxruntime", force=True)
    aside = deployment / "onnxruntime.replaced-by-brisk"
    assert (aside / "libtriton_onnxruntime.so").is_file()
    assert (deployment / "onnxruntime" / "model.py").is_file()


def test_a_directory_that_is_no_backend_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match="no Triton backend directory"):
        install(tmp_path)
    with pytest.raises(InvalidConfigurationError, match="is no directory"):
        install(tmp_path / "absent")


@pytest.mark.parametrize("lacking", [LIBRARY, STUB])
def test_a_backend_directory_without_the_whole_python_backend_is_refused(
    deployment: Path, lacking: str
) -> None:
    (deployment / "python" / lacking).unlink()
    with pytest.raises(InvalidConfigurationError, match=f"holds no python/{lacking}: "):
        install(deployment)
    assert not (deployment / "brisk").exists()


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_a_name_that_leaves_the_directory_is_refused(deployment: Path, name: str) -> None:
    with pytest.raises(InvalidConfigurationError, match="no backend name"):
        install(deployment, name=name)
