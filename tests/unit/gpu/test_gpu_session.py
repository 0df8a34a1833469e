"""A session for a GPU on a stand-in for the driver, where ONNX Runtime computes on the processor:
runs cannot be captured there, so all of them are the lane's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.errors import InvalidModelError, InvalidRequestError, UnavailableError
from brisk.gpu.device import Device
from brisk.gpu.driver import Context, CudaError, Driver, Stream
from brisk.runtime.sessions import device as worker_device
from brisk.runtime.sessions import gpu_session
from brisk.runtime.sessions.device import PROVIDER, has_lost_device, open_queues
from brisk.runtime.sessions.gpu_session import GpuSession, load_gpu_session, provider_on
from brisk.segments.program import SegmentProgram
from brisk.segments.source import Source
from brisk.tuning import BASIC, SessionTuning, Setting
from support.models.custom_operators import compile_library, scaled
from support.models.segment_models import answer, info, save, scaling
from support.runtime.external_data import settled
from support.runtime.fake_driver import fake_driver

pytestmark = pytest.mark.usefixtures("private_cache")

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device = Device(Context(Driver(fake_driver())))
    monkeypatch.setattr(worker_device, "_device", device)
    monkeypatch.setattr(gpu_session, "provider_on", lambda *settings: "CPUExecutionProvider")
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
    session: GpuSession, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    monkeypatch.setattr(gpu_session, "open_warm_program", opened.append)
    changed = onnx.load(model)
    changed.producer_name = "another"
    model.unlink()
    onnx.save(changed, model)
    with pytest.raises(InvalidModelError, match="has changed since it was loaded"):
        session.start({"x": ROWS, "scale": np.array([5.0], np.float32)}, ["y"])
    assert opened == []
    np.testing.assert_array_equal(answer(session, {"x": ROWS}), 3 * ROWS)


def test_a_file_that_is_written_to_while_it_is_loaded_is_refused(
    model: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, given_back = gpu_session.open_warm_program, []

    def open_and_write(source: Source) -> SegmentProgram:
        program = opened(source)
        with model.open("ab") as file:
            file.write(b"more")
        return program

    monkeypatch.setattr(gpu_session, "open_warm_program", open_and_write)
    monkeypatch.setattr(device, "give_back", given_back.append)
    with pytest.raises(InvalidModelError, match="was written to while it was loaded; expected"):
        load_gpu_session(model)
    assert len(given_back) == 1


def test_a_link_to_a_file_does_not_make_it_another(session: GpuSession, model: Path) -> None:
    settled(model)
    assert session.load_warm(lambda: True)
    os.link(model, model.with_name("another name"))
    settled(model)
    scale = np.array([5.0], np.float32)
    np.testing.assert_array_equal(answer(session, {"x": ROWS, "scale": scale}), 5 * ROWS)


@pytest.mark.parametrize(
    ("has_default", "is_planned"), [(False, False), (False, True), (True, False)]
)
def test_only_a_file_that_may_be_opened_again_is_digested(
    has_default: bool, is_planned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_session, "_PLANNED", frozenset({"Mul"} if is_planned else ()))
    digested: list[Path] = []
    monkeypatch.setattr(gpu_session, "note_digests", lambda path, names: digested.append(path))
    path = scaling(tmp_path / "model.onnx")
    if not has_default:
        model = onnx.load(path)
        del model.graph.input[1:]
        onnx.save(model, path)
    session = load_gpu_session(path)
    assert session.load_warm(lambda: True)
    assert digested == [path] * (has_default or is_planned)
    session.close()


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


@pytest.mark.parametrize("failing", ["BareModel", "open_warm_program"])
def test_loads_that_fail_give_their_streams_back(
    failing: str, model: Path, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the model, of its twin with optional inputs, and of the twins whose runs are captured."""
    streams: list[Stream] = []
    real = device.borrow

    def borrow() -> Stream:
        streams.append(real())
        return streams[-1]

    def fails(*given: object, **options: object) -> None:
        raise InvalidModelError("it cannot be opened")

    monkeypatch.setattr(device, "borrow", borrow)
    monkeypatch.setattr(gpu_session, "_PLANNED", frozenset({"Mul"}))
    session = load_gpu_session(model)
    lent = len(streams)
    given_back: list[Stream] = []
    monkeypatch.setattr(device, "give_back", given_back.append)
    monkeypatch.setattr(gpu_session, failing, fails)
    for _ in range(2):
        with pytest.raises(InvalidModelError, match="it cannot be opened"):
            load_gpu_session(model)
        with pytest.raises(InvalidModelError, match="it cannot be opened"):
            session.start({"x": ROWS, "scale": np.array([5.0], np.float32)}, ["y"])
        with pytest.raises(InvalidModelError, match="it cannot be opened"):
            session.network._open_another()
    assert given_back == streams[lent:]
    assert len(given_back) == 6


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


def test_every_session_of_an_entry_has_its_settings(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuning = SessionTuning(
        optimisation=BASIC,
        settings=(Setting("session.set_denormal_as_zero", "1"),),
        cuda=(Setting("use_tf32", "0"),),
    )
    asked = []

    def provider_on(ordinal: int, stream: Stream, settings: tuple[Setting, ...]) -> str:
        asked.append(settings)
        return "CPUExecutionProvider"

    monkeypatch.setattr(gpu_session, "provider_on", provider_on)
    session = load_gpu_session(model, tuning)
    scale = np.array([5.0], np.float32)
    np.testing.assert_array_equal(answer(session, {"x": ROWS}), 3 * ROWS)
    np.testing.assert_array_equal(answer(session, {"x": ROWS, "scale": scale}), 5 * ROWS)
    assert asked == [tuning.cuda] * 2, "one of them takes the optional input"
    assert session._taking_optional is not None
    for opened in (session._opened, session._taking_optional):
        (segment,) = opened.program.segments
        options = segment.session.session.get_session_options()
        assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
        assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    session.close()


def test_custom_operators_are_computed(tmp_path: Path) -> None:
    library = compile_library(tmp_path / "libscaled.so", 3)
    onnx.save(scaled(), tmp_path / "model.onnx")
    tuning = SessionTuning(operator_libraries=(str(library),))
    session = load_gpu_session(tmp_path / "model.onnx", tuning)
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.testing.assert_array_equal(answer(session, {"x": rows}), 3 * rows + 1)
    session.close()


def test_the_provider_has_the_entry_s_options_but_brisk_s_device_and_stream() -> None:
    stream = SimpleNamespace(handle=77)
    name, options = provider_on(1, stream, (Setting("cudnn_conv_algo_search", "EXHAUSTIVE"),))
    assert name == PROVIDER
    assert options == {
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "EXHAUSTIVE",
        "device_id": "1",
        "user_compute_stream": "77",
    }


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
