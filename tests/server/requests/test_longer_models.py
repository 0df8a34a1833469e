"""Models of some milliseconds in their stubs, and real-time work that comes meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from brisk.segments.frame import run_serially
from brisk.segments.prepared.form import PreparedModel, find_prepared
from brisk.segments.starting import open_warm_program, usable_cores
from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.server.entries import make_model, write_entry
from support.server.running import StartServer
from support.server.scraping import scrape, value
from support.server.small_models import ONE_INSTANCE, computed, environment_of, heat, rows
from support.server.small_models import SIGNATURE as SMALL
from support.server.small_models import small as small_model
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timing]

CHANNELS, SIZE = 32, 48
GIVEN_WAY = "brisk_stub_runs_given_way_total"
IMAGE = f"data_type: TYPE_FP32 dims: [ {CHANNELS}, {SIZE}, {SIZE} ]"
LONGER = (
    f'backend: "brisk" max_batch_size: 1 {ONE_INSTANCE} '
    f'input [ {{ name: "x" {IMAGE} }} ] output [ {{ name: "y" {IMAGE} }} ] '
)
URGENT = 'parameters { key: "brisk_class" value { string_value: "realtime" } } '


def convolutions(count: int) -> onnx.ModelProto:
    random = np.random.default_rng(3)
    names = ["x", *(f"v{each}" for each in range(1, count)), "y"]
    shape = (CHANNELS, CHANNELS, 3, 3)
    weights = [
        (f"w{each}", (random.standard_normal(shape) / 17).astype(np.float32))
        for each in range(count)
    ]
    nodes = [
        helper.make_node("Conv", [names[each], f"w{each}"], [names[each + 1]], pads=[1] * 4)
        for each in range(count)
    ]
    ends = [(name, TensorProto.FLOAT, ("batch", CHANNELS, SIZE, SIZE)) for name in ("x", "y")]
    return make_model(nodes, ends[:1], ends[1:], weights)


def of_milliseconds(least: float) -> onnx.ModelProto:
    """A network that takes at least so many, on all processors, and not twice as many."""
    count = 1
    while True:
        session = onnxruntime.InferenceSession(convolutions(count).SerializeToString())
        times_s = []
        for _ in range(15):
            begun_s = time.perf_counter()
            session.run(None, {"x": image(0)})
            times_s.append(time.perf_counter() - begun_s)
        if min(times_s) * 1e3 > least:
            return convolutions(count)
        count = max(count + 1, int(0.9 * count * least / (min(times_s) * 1e3)))


def image(seed: int) -> np.ndarray:
    shape = (1, CHANNELS, SIZE, SIZE)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("longer-models")


@pytest.fixture(scope="module")
def server(start_shared: StartServer, place: Path) -> TritonServer:
    repository = place / "models"
    write_entry(repository, "longer", of_milliseconds(3.0), LONGER)
    write_entry(repository, "urgent", small_model(), SMALL + URGENT)
    return start_shared(repository, (), environment_of(place))


@pytest.fixture
def client(server: TritonServer) -> Iterator[InferenceClient]:
    with InferenceClient(server.endpoints.grpc or "", Transport.GRPC) as made:
        yield made


def answers(place: Path, x: np.ndarray) -> list[bytes]:
    """Of the prepared form's sessions, on one thread, on all, and on what is between."""
    environment = {"BRISK_CACHE_DIR": str(place / "cache")}
    model = place / "models" / "longer" / "1" / "model.onnx"
    form = find_prepared(model, environment=environment)
    assert form is not None
    threads = {1, *(usable_cores() >> halved for halved in range(usable_cores().bit_length()))}
    sources = [PreparedModel(form, model, each, environment=environment) for each in threads]
    programs = [open_warm_program(each) for each in sources]
    return [run_serially(each, {"x": x})["y"].tobytes() for each in programs]


def test_a_hot_model_of_some_milliseconds_is_computed_by_its_stub(
    server: TritonServer, client: InferenceClient, place: Path
) -> None:
    heat(server, client, "longer", {"x": image(0)})
    for seed in range(5):
        x = image(seed)
        assert client.infer("longer", {"x": x})["y"].tobytes() in answers(place, x)


def test_its_runs_give_way_to_real_time_work_and_are_answered_all_the_same(
    server: TritonServer, client: InferenceClient, place: Path
) -> None:
    heat(server, client, "longer", {"x": image(0)})
    x = image(1)
    expected, ended = answers(place, x), threading.Event()
    wrong: list[str] = []

    def ask() -> None:
        with InferenceClient(server.endpoints.grpc or "", Transport.GRPC) as own:
            while not ended.is_set():
                try:
                    if own.infer("longer", {"x": x})["y"].tobytes() not in expected:
                        wrong.append("another answer")
                except Exception as error:  # noqa: BLE001
                    wrong.append(str(error))

    def has_given_way() -> bool:
        for _ in range(3):
            client.infer("urgent", {"x": rows()})
        return value(scrape(server), GIVEN_WAY, model="longer") > 0

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with TIMED:
            wait_until(has_given_way, "a run that gives way", every_s=0.7)
    finally:
        ended.set()
        asking.join()
    assert wrong == []
    before = computed(server, "longer")

    def computes_again() -> bool:
        client.infer("longer", {"x": x})
        return computed(server, "longer") > before

    with TIMED:
        wait_until(computes_again, "a run in the stub", every_s=0.1)
