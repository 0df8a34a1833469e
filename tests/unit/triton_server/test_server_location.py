"""Finding a Triton and its files."""

import os
import sys
from pathlib import Path

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.triton.locate import LIBRARY, STUB, UTILS, locate_server


def make_system_server(prefix: Path) -> Path:
    """The layout of /opt/tritonserver, with empty files."""
    executable = prefix / "bin" / "tritonserver"
    python = prefix / "backends" / "python"
    python.mkdir(parents=True)
    executable.parent.mkdir()
    for file in (executable, python / LIBRARY, python / UTILS, python / STUB):
        file.touch()
    executable.chmod(0o755)
    return executable


@pytest.fixture(autouse=True)
def _no_inherited_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITONSERVER", raising=False)


def test_the_wheels_server_is_found_without_importing_the_wheel() -> None:
    server = locate_server()
    assert server.embedded
    assert server.executable.name == "tritonserver"
    assert os.access(server.executable, os.X_OK)
    assert [path.name for path in server.python_backend] == [LIBRARY, UTILS, STUB]
    assert server.python_backend[2].parent.name == "{}.{}".format(*sys.version_info)
    assert (server.caches / "local" / "libtritoncache_local.so").is_file()
    assert "pytriton" not in sys.modules


@pytest.mark.parametrize("part", ["", "bin", "bin/tritonserver"])
def test_a_system_server_is_named_by_its_directory_or_its_executable(
    tmp_path: Path, part: str
) -> None:
    executable = make_system_server(tmp_path)
    server = locate_server(tmp_path / part)
    assert not server.embedded
    assert server.executable == executable
    assert server.backends == tmp_path / "backends"
    assert server.library_path == ()


def test_the_environment_variable_chooses_and_the_argument_wins_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    make_system_server(first)
    make_system_server(second)
    monkeypatch.setenv("TRITONSERVER", str(first))
    assert locate_server().executable.is_relative_to(first)
    assert locate_server(second).executable.is_relative_to(second)


def test_a_path_without_a_server_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match=f"no executable tritonserver.*{tmp_path}"):
        locate_server(tmp_path)


def test_a_server_without_the_python_backend_is_refused(tmp_path: Path) -> None:
    make_system_server(tmp_path)
    (tmp_path / "backends" / "python" / LIBRARY).unlink()
    with pytest.raises(InvalidConfigurationError, match="Python backend is needed"):
        locate_server(tmp_path)


def test_a_server_without_a_stub_for_this_python_says_which_it_has(tmp_path: Path) -> None:
    make_system_server(tmp_path)
    (tmp_path / "python_backend_stubs" / "3.4").mkdir(parents=True)
    with pytest.raises(InvalidConfigurationError, match=r"no stub for Python .* only for 3\.4"):
        locate_server(tmp_path)
