"""Reading ``--peer-backends``."""

from __future__ import annotations

from pathlib import Path

import pytest

from brisk_bench.harness.command_line import UnusableArgumentError
from brisk_bench.harness.peer_backends import onnxruntime_backend, peer_backends


@pytest.mark.parametrize("read", [peer_backends, onnxruntime_backend])
def test_a_folder_of_backends_is_read_or_refused(tmp_path: Path, read: object) -> None:
    assert callable(read)
    with pytest.raises(UnusableArgumentError, match="nowhere' is no folder; expected a folder"):
        read(tmp_path / "nowhere")
    with pytest.raises(UnusableArgumentError, match=r"(holds no backend|there is no '.*'); expec"):
        read(tmp_path)
    backend = tmp_path / "onnxruntime"
    backend.mkdir()
    with pytest.raises(UnusableArgumentError, match=r"no '.*libtriton_onnxruntime\.so'; expected"):
        read(tmp_path)
    library = backend / "libtriton_onnxruntime.so"
    library.write_bytes(b"not a library")
    with pytest.raises(UnusableArgumentError, match="is no shared library; expected"):
        read(tmp_path)
    library.write_bytes(b"\x7fELF")
    assert read(tmp_path) in (backend, [backend])


def test_one_backend_without_its_library_is_named_among_others(tmp_path: Path) -> None:
    for name in ("onnxruntime", "openvino", "python", ".cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "onnxruntime" / "libtriton_onnxruntime.so").write_bytes(b"\x7fELF")
    assert onnxruntime_backend(tmp_path) == tmp_path / "onnxruntime"
    with pytest.raises(UnusableArgumentError, match=r"no '.*libtriton_openvino\.so'"):
        peer_backends(tmp_path)
