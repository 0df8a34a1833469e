"""Entries for a GPU where something that they need is missing: the load says so in a sentence."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.errors import BriskError, InvalidConfigurationError, UnavailableError
from brisk.protocol.runtime_paths import RuntimePaths
from support.runtime.runtime_process import describe, end_processes, opened

MISSING = 'raise ModuleNotFoundError("No module named \'torch\'", name="torch")\n'


@pytest.fixture
def gpu_place() -> Iterator[RuntimePaths]:
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    own = RuntimePaths(parent / "runtime", "cuda:0")
    yield own
    end_processes(own)
    shutil.rmtree(parent)


def refusal(place: RuntimePaths, model: Path) -> BriskError:
    with pytest.raises(BriskError) as caught, opened(place, describe(model)):
        pass
    return caught.value


def test_without_torch_the_package_is_named_and_the_processor_as_another_way(
    gpu_place: RuntimePaths, quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "without" / "torch").mkdir(parents=True)
    (tmp_path / "without" / "torch" / "__init__.py").write_text(MISSING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "without"))
    error = refusal(gpu_place, quick)
    assert isinstance(error, UnavailableError)
    text = str(error)
    assert "models on a GPU are computed by torch" in text
    assert "'brisk-triton[gpu]'" in text
    assert "KIND_CPU" in text
    assert "\n" not in text


def test_without_a_device_torch_is_named_with_what_it_sees(
    gpu_place: RuntimePaths, quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    error = refusal(gpu_place, quick)
    assert isinstance(error, InvalidConfigurationError)
    assert "'cuda:0' is not here" in str(error)
    assert "sees 0 CUDA devices" in str(error)
    assert "KIND_CPU" in str(error)
