"""What is made once for the whole run, in which order processes run it, and how it ends.

Folders by what they need: ``unit`` Python and ONNX Runtime (two minutes), ``with_torch`` torch (of
training caches), ``runtime`` processes of Brisk, ``server`` a
real Triton server, ``hosts`` network namespaces, ``docker`` a container builder, ``gpu`` a CUDA
device.
"""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from second_run import SecondRun, add_options

if TYPE_CHECKING:
    from support.exits.adapted import Adapted

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before a test imports ONNX Runtime by itself


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(SecondRun(config))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of ``unit``, which are short, come last: so several processes end together.

    Of these, the few that lie in no folder start processes and take longer: they come first.
    """
    unit = Path(__file__).parent / "unit"

    def rank(item: pytest.Item) -> int:
        if not item.path.is_relative_to(unit):
            return 0
        return 1 if item.path.parent == unit else 2

    items.sort(key=rank)


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: a collection of garbage, which tests of what is left
    open ask for, need not look at them again; it would take half a second each."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What ``pytest -n`` asks."""
    from two_stages import TwoStages

    return TwoStages(config, log)


@pytest.fixture
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    """A digits network with caches. Its files are not to be changed: copy them."""
    from support.exits.adapted import make_adapted

    return make_adapted(tmp_path_factory.mktemp("adapted"))


@pytest.fixture(scope="session")
def node_cases(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """All node cases of the ONNX project. Nothing of them is to be changed.

    They take twelve seconds to make: of several processes the first that needs them does it.
    """
    from brisk_bench.conformance import collect_cases

    if "PYTEST_XDIST_WORKER" not in os.environ:
        return collect_cases()
    file = tmp_path_factory.getbasetemp().parent / "node-cases"  # of all processes of this run
    if not file.exists():
        unfinished = file.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(pickle.dumps(collect_cases()))
        unfinished.rename(file)
    cases: list[Any] = pickle.loads(file.read_bytes())
    return cases
