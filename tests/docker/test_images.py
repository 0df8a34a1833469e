"""The image of Dockerfile.cpu: built, started, asked from outside, ended. Takes minutes.

``make image-test`` runs this; nothing else does.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.triton.options import Endpoints, endpoints, holding_free_ports
from brisk_bench.demo import query_samples
from brisk_bench.samples.expectations import EXPECTED
from docker.container_engines import Container, ContainerError, Engine, find_engine
from support.waiting import TIMED

SAMPLES = Path(__file__).resolve().parents[2] / "model_repository"
READY_TIMEOUT_S = 120.0

pytestmark = [
    pytest.mark.timing,
    pytest.mark.image,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not os.environ.get("BRISK_TEST_IMAGES"), reason="takes minutes: make image-test runs it"
    ),
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    found = find_engine()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def image(engine: Engine) -> str:
    return engine.build("Dockerfile.cpu", "server")


@pytest.fixture
def options() -> Iterator[list[str]]:
    """Of the server: the image's own repository, ports that are free here."""
    given = ("--repository=/models", "--http-address=127.0.0.1", "--grpc-address=127.0.0.1")
    with holding_free_ports(given) as options:
        yield list(options)


@pytest.fixture
def server(
    engine: Engine, image: str, options: list[str], tmp_path: Path
) -> Iterator[tuple[Container, Endpoints]]:
    container = engine.start(image, SAMPLES, options, tmp_path / "log")
    try:
        served = endpoints(options)
        wait_ready(container, served, tmp_path / "log")
        yield container, served
    finally:
        container.remove()


def wait_ready(container: Container, served: Endpoints, log: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not answers(f"http://{served.http}/v2/health/ready"):
        text = log.read_text(errors="replace")[-3000:] if log.exists() else ""
        assert container.returncode() is None, text
        with TIMED:
            assert time.monotonic() < deadline_s, text
        time.sleep(0.2)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_a_server_in_the_image_answers_from_outside_and_ends_at_sigterm(
    engine: Engine, image: str, server: tuple[Container, Endpoints]
) -> None:
    container, served = server
    assert served.http is not None
    assert served.grpc is not None
    answered = query_samples(SAMPLES, http_url=served.http, grpc_url=served.grpc)
    assert {answer.model for answer in answered} == {
        file.parent.name for file in SAMPLES.glob(f"*/{EXPECTED}")
    }
    assert [(answer.model, answer.problem) for answer in answered if answer.problem] == []
    engine.output(image, SAMPLES, health_check(engine, image, served.http))

    container.signal(signal.SIGTERM)
    assert container.wait() == 0
    with pytest.raises(ContainerError, match="refused"):
        engine.output(image, SAMPLES, health_check(engine, image, served.http))


def health_check(engine: Engine, image: str, http: str) -> list[str]:
    """The image's own, for a server at another port."""
    kind, *command = engine.configuration(image)["Healthcheck"]["Test"]
    assert kind == "CMD"
    return [word.replace("127.0.0.1:8000", http) for word in command]


def test_the_client_image_finds_every_answer_right(
    engine: Engine, server: tuple[Container, Endpoints]
) -> None:
    client = engine.build("Dockerfile.cpu", "client")
    _, served = server
    command = engine.configuration(client)["Entrypoint"]
    printed = engine.output(
        client, SAMPLES, [*command, "/models", str(served.http), str(served.grpc)]
    )
    assert "answers are right" in printed


def test_the_server_image_has_no_compiler_and_no_root(engine: Engine, image: str) -> None:
    script = "for name in gcc cc g++ make pip pip3; do command -v $name; done; id -un"
    assert engine.output(image, SAMPLES, ["/bin/sh", "-c", script]).split() == ["brisk"]
    assert engine.configuration(image)["StopSignal"] == "SIGTERM"


def test_the_server_image_has_what_fetches_models_that_lie_elsewhere(
    engine: Engine, image: str
) -> None:
    words = "from brisk.copies.courier import Courier; Courier().close(); print('fetches')"
    command = ["/opt/brisk/bin/python3", "-c", words]
    assert engine.output(image, SAMPLES, command).splitlines()[-1] == "fetches"


def test_models_in_the_image_run_as_fast_as_with_onnx_runtime_and_start_sooner(
    engine: Engine, image: str
) -> None:
    """The image has no compiler: whatever needed one would be missing from these figures.

    Margins are wide: the machine is shared. ``brisk bench`` measures.
    """
    script = Path(__file__).with_name("figures.py").read_text()
    told = engine.output(image, SAMPLES, ["python3", "-c", script, "/models"])
    found = json.loads(told.splitlines()[-1])
    print(told)
    assert set(found) >= {"resnet50", "encoder", "mlp", "digits_cnn"}
    with TIMED:
        assert math.prod(each["warm"] for each in found.values()) ** (1 / len(found)) < 1.3
    large = [found[name]["start"] for name in ("resnet50", "encoder")]
    with TIMED:
        assert max(large) < 0.8


def test_a_start_in_the_image_finds_its_python_compiled(engine: Engine, image: str) -> None:
    """Nothing may be written there, so what is not compiled is so at each start, 0.5 s of it."""
    script = (
        "import os, sys\n"
        "import brisk.cli, brisk.runtime.__main__, onnx\n"
        "from brisk.runtime.ready import import_everything\n"
        "import_everything('cpu')\n"
        "compiled = [each for each in sys.modules.values() if getattr(each, '__cached__', None)]\n"
        "print(len(compiled) > 200)\n"
        "print(*[each.__name__ for each in compiled if not os.path.exists(each.__cached__)])\n"
    )
    printed = engine.output(image, SAMPLES, ["/opt/brisk/bin/python3", "-c", script])
    assert printed.split() == ["True"]
