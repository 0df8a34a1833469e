"""A load during which workers have died answers as ever, or says that it does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from brisk.runtime.sessions.attempts import (
    ATTEMPTS,
    MOST_DEATHS,
    end_attempts,
    exchange_attempt,
    new_page,
)
from brisk.runtime.sessions.segment_session import SegmentSession, load_segment_session
from support.models.quantised_models import product_of
from support.models.segment_models import answer, chain, whole

pytestmark = pytest.mark.usefixtures("private_cache")

CASE = product_of("MatMul", TensorProto.INT8, 64, 32, 0, offset=False)


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(CASE.model.SerializeToString())
    return path


def workers_die(model: Path, times: int) -> None:
    """Count deaths of workers that were optimising the model."""
    pages = [new_page() for _ in range(times)]
    with exchange_attempt(model):
        for page in pages:
            page[:] = ATTEMPTS.page[:]
    for page in pages:
        end_attempts(page, has_died=True)


def counts_a_death(model: Path) -> bool:
    with exchange_attempt(model, most_deaths=1, keeps_deaths=True) as may_be_tried:
        return not may_be_tried


def loaded(model: Path) -> SegmentSession:
    return load_segment_session(model, 1, None, None)


def answered(session: SegmentSession) -> np.ndarray:
    return answer(session, CASE.inputs[0], [session.outputs[0].name])


def test_after_one_death_a_quantised_model_answers_as_ever(quantised: Path) -> None:
    (expected,) = whole(quantised, CASE.inputs[0]).values()
    workers_die(quantised, 1)
    session = loaded(quantised)
    np.testing.assert_array_equal(answered(session), expected)
    assert session.table.wait(30)
    assert "died" not in session.summary
    assert counts_a_death(quantised)
    assert session.load_warm(lambda: True)
    assert not counts_a_death(quantised)


def test_where_a_quantised_model_answers_otherwise_its_summary_says_so(quantised: Path) -> None:
    (expected,) = whole(quantised, CASE.inputs[0]).values()
    workers_die(quantised, MOST_DEATHS)
    session = loaded(quantised)
    assert not np.array_equal(answered(session), expected)
    assert "workers have died of that" in session.summary
    assert "answer otherwise" in session.summary


def test_a_model_that_computes_on_floats_starts_otherwise_after_one_death_and_says_so(
    tmp_path: Path,
) -> None:
    model = chain(tmp_path / "model.onnx", layers=1, width=128)
    workers_die(model, 1)
    session = loaded(model)
    assert "workers have died of that" in session.summary
    assert "otherwise" not in session.summary
    assert counts_a_death(model), "it has not been optimised yet"
