"""A runtime of its own on the CUDA device, asked through a stub's connection."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from brisk.errors import BriskError
from brisk.gpu.driver import Context, Driver
from brisk.protocol.runtime_paths import Role, runtime_place
from brisk.segments.onnxruntime import onnxruntime
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.telemetry.observer import Observer
from brisk.tuning import SessionTuning, Setting
from support.models.segment_models import info, save, whole
from support.runtime.runtime_process import Answer, describe, submit

DEVICE = os.environ.get("BRISK_TEST_DEVICE", "cuda:0")
"""Another one tries the tests themselves."""


def _reason() -> str | None:
    """Why there is nothing to test here."""
    if DEVICE == "cpu":
        return None
    try:
        Driver()
    except BriskError as error:
        return str(error)
    if "CUDAExecutionProvider" not in onnxruntime().get_available_providers():
        return "onnxruntime is the build for processors"
    return None


pytestmark = [
    pytest.mark.timing,
    pytest.mark.gpu,
    pytest.mark.skipif(_reason() is not None, reason=str(_reason())),
]

RTOL, ATOL = 1e-2, 1e-2
"""Of products in TF32, as ONNX Runtime computes them there."""


class Model:
    """Asked through a connection of its own."""

    def __init__(self, path: Path, job_class: str = "normal", *options: tuple[str, str]) -> None:
        """``options``: of the CUDA provider."""
        self.path, self.job_class = path, job_class
        tuning = SessionTuning(cuda=tuple(Setting(*each) for each in options))
        description = describe(path, job_class=job_class, tuning=tuning)
        self.client = RuntimeClient(runtime_place(DEVICE), description, print)
        self.client.open()

    def begin(self, x: np.ndarray) -> Answer:
        return submit(self.client, x, self.job_class)[1]

    def ask(self, x: np.ndarray) -> np.ndarray:
        return self.begin(x).output()

    def expected(self, x: np.ndarray) -> np.ndarray:
        return whole(self.path, {"x": x})["y"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Model]]:
    directory = Path(tempfile.mkdtemp(prefix="brisk-"))
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(directory))
    monkeypatch.setenv("BRISK_IDLE_EXIT_S", "1")
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)

        def make(path: Path, job_class: str = "normal", *options: tuple[str, str]) -> Model:
            model = Model(path, job_class, *options)
            stack.callback(model.client.close)
            return model

        yield make


@pytest.fixture
def convolution(tmp_path: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    ends = [info("x", "n", 3, 16, 16)], [info("y", "n", 8, 14, 14)]
    return save(tmp_path / "conv.onnx", nodes, *ends, {"w": weights})


@pytest.fixture
def products(tmp_path: Path) -> Path:
    """Many products of matrices, one behind the other: milliseconds on a GPU."""
    random = np.random.default_rng(1)
    weights, nodes, last = {}, [], "x"
    for index in range(200):
        weights[f"w{index}"] = (random.standard_normal((1024, 1024)) / 32).astype(np.float32)
        nodes += [
            helper.make_node("MatMul", [last, f"w{index}"], [f"m{index}"]),
            helper.make_node("Tanh", [f"m{index}"], [f"t{index}"]),
        ]
        last = f"t{index}"
    nodes[-1].output[0] = "y"
    ends = [info("x", "n", 1024)], [info("y", "n", 1024)]
    return save(tmp_path / "products.onnx", nodes, *ends, weights)


def random_like(rows: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, *shape)).astype(np.float32)


def test_each_number_of_rows_is_answered_as_on_the_processor(
    opened: Callable[..., Model], convolution: Path
) -> None:
    model = opened(convolution)
    for rows in (1, 4, 2, 1, 3, 4, 16, 1):
        x = random_like(rows, 3, 16, 16)
        np.testing.assert_allclose(model.ask(x), model.expected(x), rtol=RTOL, atol=ATOL)


def test_an_answer_is_the_same_to_the_last_bit_beside_others_that_go_first(
    opened: Callable[..., Model], convolution: Path, products: Path
) -> None:
    """Runs of milliseconds are parked for each of many urgent ones, also of their own model."""
    slow, same = opened(products, "besteffort"), opened(products, "realtime")
    urgent = opened(convolution, "realtime")
    x, image = random_like(2, 1024), random_like(1, 3, 16, 16)
    expected, expected_urgent = slow.ask(x), urgent.ask(image)
    np.testing.assert_allclose(expected, slow.expected(x), rtol=RTOL, atol=ATOL)
    np.testing.assert_allclose(expected_urgent, urgent.expected(image), rtol=RTOL, atol=ATOL)
    for turn in range(30):
        pending = [slow.begin(x) for _ in range(4)]
        for _ in range(10):
            np.testing.assert_array_equal(urgent.ask(image), expected_urgent)
        if turn % 3 == 0:
            np.testing.assert_array_equal(same.ask(x), expected)
        for answer in pending:
            np.testing.assert_array_equal(answer.output(), expected)


def test_what_cannot_be_captured_is_served(opened: Callable[..., Model], tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["found"]),
        helper.make_node("Cast", ["found"], ["y"], to=TensorProto.FLOAT),
    ]
    model = opened(save(tmp_path / "odd.onnx", nodes, [info("x", "n", 5)], [info("y", 2, "m")]))
    for rows in (1, 3):
        x = (random_like(rows, 5) > 0).astype(np.float32)
        np.testing.assert_array_equal(model.ask(x), model.expected(x))


def test_options_of_an_entry_are_those_of_its_session(
    opened: Callable[..., Model], convolution: Path, products: Path
) -> None:
    exact = opened(convolution, "normal", ("use_tf32", "0"), ("cudnn_conv_algo_search", "DEFAULT"))
    for rows in (1, 4, 1):
        x = random_like(rows, 3, 16, 16)
        np.testing.assert_allclose(exact.ask(x), exact.expected(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(BriskError, match="emory"):
        opened(products, "normal", ("gpu_mem_limit", str(8 << 20)))
    x = random_like(2, 1024)
    np.testing.assert_allclose(
        opened(products).ask(x), opened(products).expected(x), rtol=RTOL, atol=ATOL
    )


def test_what_takes_more_than_the_limit_is_refused_and_others_go_on(
    opened: Callable[..., Model],
    convolution: Path,
    products: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BRISK_GPU_MEMORY", "256")
    small, x = opened(convolution), random_like(1, 3, 16, 16)
    expected = small.ask(x)
    with pytest.raises(BriskError, match="BRISK_GPU_MEMORY allows 256 MiB"):
        opened(products)
    np.testing.assert_array_equal(small.ask(x), expected)


def test_a_request_that_does_not_fit_harms_no_other(
    opened: Callable[..., Model], convolution: Path
) -> None:
    model = opened(convolution)
    x = random_like(1, 3, 16, 16)
    expected = model.ask(x)
    error = model.begin(random_like(1, 3, 16, 17)).wait().error
    assert "expected float32" in str(error)
    np.testing.assert_array_equal(model.ask(x), expected)


def test_requests_of_a_worker_that_is_killed_are_answered_by_the_next(
    opened: Callable[..., Model], products: Path
) -> None:
    model = opened(products)
    x = random_like(1, 1024)
    expected = model.ask(x)
    with Observer(runtime_place(DEVICE), Role.FOREGROUND) as observer:
        worker = observer.status().pid
    pending = [model.begin(x) for _ in range(8)]
    os.kill(worker, signal.SIGKILL)
    for answer in pending:
        np.testing.assert_allclose(answer.output(), expected, rtol=RTOL, atol=ATOL)


def test_memory_is_given_back_when_models_go(
    opened: Callable[..., Model], convolution: Path, products: Path
) -> None:
    opened(convolution)

    def free() -> int:
        context = Context(Driver())
        try:
            return context.memory()[0]
        finally:
            context.close()

    x = random_like(1, 1024)
    before = []
    for _ in range(4):
        model = opened(products)
        model.ask(x)
        model.client.close()
        before.append(free())
    assert before[0] - before[-1] < 64 << 20, "a model that is loaded again takes no more"
