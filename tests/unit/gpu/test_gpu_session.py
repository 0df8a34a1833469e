"""A session for a GPU on a stand-in for the driver, where ONNX Runtime computes on the processor:
runs cannot be captured there, so all of them are the lane's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.errors import InvalidModelError, InvalidRequestError, UnavailableError
from brisk.gpu.device import Device
from brisk.gpu.driver import Context, CudaError, Driver
from brisk.runtime.sessions import device as worker_device
from brisk.runtime.sessions import gpu_session
from brisk.runtime.sessions.device import has_lost_device, open_queues
from brisk.runtime.sessions.gpu_session import GpuSession, load_gpu_session
from brisk.runtime.sessions.session import Session
from support.models.segment_models import info, save, scaling
from support.runtime.fake_driver import fake_driver

pytestmark = pytest.mark.usefixtures("private_cache")

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device = Device(Context(Driver(fake_driver())))
    monkeypatch.setattr(worker_device, "_device", device)
    monkeypatch.setattr(gpu_session, "provider_on", lambda ordinal, stream: "CPUExecutionProvider")
    yield device
    device.perform(lambda: None).result()
    device.context.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return scaling(tmp_path / "model.onnx")


@pytest.fixture
def session(model: Path) -> Iterator[GpuSession]:
    session = load_gpu_session(model)
    yield session
    session.close()


def answer(session: Session, inputs: Mapping[str, np.ndarray], *names: str) -> np.ndarray:
    frame = session.start(inputs, names or ["y"])
    while not frame.step():
        pass
    return np.asarray(next(iter(frame.results().values())))


def test_it_answers_as_the_model_does(session: GpuSession) -> None:
    assert [each.name for each in session.inputs] == ["x", "scale"]
    np.testing.assert_array_equal(answer(session, {"x": ROWS}), 3 * ROWS)
    np.testing.assert_array_equal(answer(session, {"x": ROWS[:1]}), 3 * ROWS[:1])


def test_a_request_may_give_an_input_that_has_a_default(session: GpuSession) -> None:
    scale = np.array([5.0], np.float32)
    for _ in range(2):
        np.testing.assert_array_equal(answer(session, {"x": ROWS, "scale": scale}), 5 * ROWS)
        np.testing.assert_array_equal(answer(session, {"x": ROWS}), 3 * ROWS)


def test_of_a_file_that_has_changed_no_other_session_is_made(
    session: GpuSession, model: Path
) -> None:
    changed = onnx.load(model)
    changed.producer_name = "another"
    model.unlink()
    onnx.save(changed, model)
    with pytest.raises(InvalidModelError, match="has changed since it was loaded"):
        session.start({"x": ROWS, "scale": np.array([5.0], np.float32)}, ["y"])
    np.testing.assert_array_equal(answer(session, {"x": ROWS}), 3 * ROWS)


def test_inputs_that_do_not_fit_are_refused_before_anything_runs(session: GpuSession) -> None:
    with pytest.raises(InvalidRequestError, match="input 'x': expected float32"):
        session.start({"x": ROWS.astype(np.float64)}, ["y"])
    with pytest.raises(InvalidRequestError, match="there is no output"):
        session.start({"x": ROWS}, ["q"])
    with pytest.raises(InvalidRequestError, match="input 'x' is missing"):
        session.start({}, ["y"])


def test_strings_are_served(tmp_path: Path) -> None:
    words = helper.make_tensor_value_info("x", TensorProto.STRING, ("n",))
    same = helper.make_tensor_value_info("y", TensorProto.STRING, ("n",))
    path = save(
        tmp_path / "words.onnx", [helper.make_node("Identity", ["x"], ["y"])], [words], [same], {}
    )
    session = load_gpu_session(path)
    strings = np.array(["one", "two"], object)
    assert answer(session, {"x": strings}).tolist() == ["one", "two"]
    session.close()


def test_a_model_that_cannot_be_loaded_is_refused_by_name(tmp_path: Path) -> None:
    path = save(
        tmp_path / "odd.onnx",
        [helper.make_node("NoSuchOperator", ["x"], ["y"])],
        [info("x", "n", 3)],
        [info("y", "n", 3)],
        {},
    )
    with pytest.raises(InvalidModelError, match="NoSuchOperator"):
        load_gpu_session(path)


def test_a_model_that_lost_the_device_twice_is_not_captured_any_more(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for losses, is_captured in enumerate((True, True, False)):
        session = load_gpu_session(model)
        assert session.network.may_capture is is_captured
        np.testing.assert_array_equal(answer(session, {"x": ROWS}), 3 * ROWS)
        session.lost_device()
        session.close()
        assert losses == 2 or not caplog.records
    assert "lost 2 times" in caplog.text
    changed = onnx.load(model)
    changed.producer_name = "another"
    model.unlink()
    onnx.save(changed, model)
    session = load_gpu_session(model)
    assert session.network.may_capture, "it is another model"
    session.close()


def test_without_the_provider_the_sentence_says_what_to_do() -> None:
    with pytest.raises(UnavailableError) as raised:
        open_queues("cuda:0", 2)
    for word in ("CUDA provider", "install onnxruntime-gpu", "KIND_CPU", "uninstall onnxruntime"):
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CudaError("cuGraphLaunch", 700, "CUDA_ERROR_ILLEGAL_ADDRESS"), True),
        (CudaError("cuMemAlloc_v2", 2, "CUDA_ERROR_OUT_OF_MEMORY"), False),
        (InvalidRequestError("a shape that fits not"), False),
        (RuntimeError("anything"), False),
    ],
)
def test_a_lost_device_is_told_from_any_other_error(error: Exception, expected: bool) -> None:
    assert has_lost_device(error) is expected


def test_an_error_that_onnx_runtime_tells_is_looked_into(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> None:
        raise CudaError("cuCtxSynchronize", 719, "CUDA_ERROR_LAUNCH_FAILED")

    monkeypatch.setattr(device.context, "synchronise", lost)
    assert has_lost_device(RuntimeError("CUDA failure 719"))


def test_on_a_processor_no_device_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_device, "_device", None)
    assert not has_lost_device(RuntimeError("anything"))
