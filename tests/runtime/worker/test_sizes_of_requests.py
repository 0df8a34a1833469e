"""Requests of many sizes, of several stubs at once."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from brisk.protocol.runtime_paths import RuntimePaths
from support.runtime.runtime_process import describe, infer, opened, quick_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quick_model(tmp_path_factory.mktemp("models") / "sizes.onnx")


def test_many_requests_of_many_sizes_are_answered_right(
    shared_place: RuntimePaths, model: Path
) -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        with opened(shared_place, describe(model)) as connection:
            for number in range(100):
                rows = int(random.choice([1, 100, 5000, 20_000, 150_000]))
                value = random.standard_normal((rows, 4)).astype(np.float32)
                if not np.array_equal(infer(connection, value), -value):
                    wrong.append(f"{seed}, {number}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
