"""Look-ups as one call of machine code, against their definition in torch."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from brisk.compiled.library import absence, wait_until_settled
from brisk.exits import compiled_lookup
from brisk.exits.building import empty_look_up
from brisk.exits.compiled_lookup import (
    CompiledLookUp,
    LookedUp,
    look_up_bytes,
    ready_look_up,
)
from brisk.exits.gate import summary
from brisk.exits.lookup import LookUp, SoftmaxLookUp
from brisk.exits.variants import weights_bytes

CASES = [
    ("Pool(4096)", (128, 16, 16), 10),  # windows that overlap
    ("Pool(4096)", (24, 9, 7), 100),  # odd sides, channels that are no whole vectors
    ("Pool(4096)", (37,), 3),  # fewer features than a gate has dimensions
    ("Pool(4096)", (49, 96), 10),
    ("Conv(3,1)", (48, 12, 12), 10),
    ("Conv(5,2)", (16, 15, 13), 1000),
    ("Conv2(3,2)", (20, 16, 16), 10),
    ("Conv3(3,2)", (20, 17, 16), 10),
    ("FC(512)", (8, 6, 5), 10),
    ("FC(512)", (12, 20), 10),
]


@pytest.fixture(autouse=True, scope="module")
def _executor() -> None:
    if wait_until_settled() is None:
        pytest.skip(f"no executor for look-ups: {absence()}")


def random_look_up(variant: str, shape: tuple[int, ...], classes: int) -> LookUp:
    """Weights of which scores, floors and distances differ from row to row."""
    torch.manual_seed(0)
    network = empty_look_up(variant, shape, classes)
    for tensor in (*network.parameters(), *network.buffers()):
        if tensor.dim():
            summands = tensor[0].numel() if tensor.dim() == 4 else tensor.shape[-1]
            tensor.copy_(torch.randn(tensor.shape) / math.sqrt(summands))
    network.gate.scale.abs_()
    network.gate.round()
    network.gate.outside.fill_(0.5)
    network.gate.limit.fill_(1.0)
    return network


def as_tensors(looked: LookedUp) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As the definition gives them: logits, scores, nearness."""
    return looked.logits, torch.tensor(list(looked.scores)), torch.tensor(list(looked.near))


def settle(network: LookUp, hidden: torch.Tensor) -> None:
    """Half of the rows are near, and most of these above the floor."""
    logits = network.predictor(hidden)
    features = summary(hidden)
    network.gate.limit.copy_(network.gate.distance(features, logits.argmax(1)).quantile(0.5))
    network.floor.zero_()
    scores = network(hidden)[1]
    network.floor.copy_(scores[scores > 0].quantile(0.2, interpolation="midpoint"))


@pytest.mark.parametrize(("variant", "shape", "classes"), CASES)
@pytest.mark.parametrize("rows", [1, 40])
def test_a_compiled_look_up_gives_what_its_definition_gives(
    variant: str, shape: tuple[int, ...], classes: int, rows: int
) -> None:
    network = random_look_up(variant, shape, classes)
    many = torch.randn(40, *shape)
    settle(network, many)
    found = as_tensors(ready_look_up(network, shape)(many[:rows]))
    expected = network(many[:rows])
    assert isinstance(ready_look_up(network, shape), CompiledLookUp)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-4, atol=2e-4)
    if rows > 1:
        assert 0 < int(expected[2].sum()) < rows
        assert 0 < int((expected[1] > 0).sum()) < int(expected[2].sum())


def test_calls_of_two_threads_wait_for_each_other() -> None:
    """The lane may still look up for one request when the next one does so in its own thread."""
    network = random_look_up("Conv(3,1)", (48, 12, 12), 10)
    many = torch.randn(40, 48, 12, 12)
    settle(network, many)
    look_up = ready_look_up(network, (48, 12, 12))
    look_up(many)

    def ask(rows: int) -> list[torch.Tensor]:
        return [look_up(many[:rows]).logits for _ in range(300)]

    with ThreadPoolExecutor(3) as threads:
        for rows, found in [(rows, threads.submit(ask, rows)) for rows in (1, 7, 40)]:
            expected = network(many[:rows])[0]
            for logits in found.result():
                torch.testing.assert_close(logits, expected, rtol=2e-4, atol=2e-4)


def test_hidden_outputs_may_lie_in_any_order() -> None:
    network = random_look_up("Pool(4096)", (24, 9, 7), 10)
    hidden = torch.randn(4, 24, 9, 7)
    settle(network, hidden)
    ready = ready_look_up(network, (24, 9, 7))
    last = hidden.contiguous(memory_format=torch.channels_last)
    for one, other in zip(as_tensors(ready(hidden)), as_tensors(ready(last)), strict=True):
        assert torch.equal(one, other)


def test_what_is_no_number_is_never_answered() -> None:
    network = random_look_up("Pool(4096)", (8, 4, 4), 10)
    hidden = torch.randn(20, 8, 4, 4)
    settle(network, hidden)
    hidden[7] = math.nan
    hidden[9] = math.inf
    _, scores, near = as_tensors(ready_look_up(network, (8, 4, 4))(hidden))
    assert scores[[7, 9]].tolist() == [0.0, 0.0]
    assert not near[[7, 9]].any()


def test_thresholds_on_the_softmax_are_compiled_too() -> None:
    inner = random_look_up("Conv(3,1)", (16, 8, 8), 10)
    network = SoftmaxLookUp(inner.predictor, inner.selector, inner.gate)
    hidden = torch.randn(5, 16, 8, 8)
    found, expected = as_tensors(ready_look_up(network, (16, 8, 8))(hidden)), network(hidden)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_rows_of_another_shape_and_more_of_them_are_left_to_torch() -> None:
    network = random_look_up("Pool(4096)", (8, 4, 4), 10)
    ready = ready_look_up(network, (8, 4, 4))
    many = torch.randn(compiled_lookup.MOST_ROWS + 1, 8, 4, 4)
    assert torch.equal(ready(many).logits, network(many)[0])
    with pytest.raises(RuntimeError):
        ready(torch.randn(2, 8, 5, 5))


def test_large_predictors_are_left_to_torch() -> None:
    large = empty_look_up("FC(1024)", (64, 8, 8), 10)
    hidden = torch.randn(2, 64, 8, 8)
    ready = ready_look_up(large, (64, 8, 8))
    assert not isinstance(ready, CompiledLookUp)
    for ours, theirs in zip(as_tensors(ready(hidden)), large(hidden), strict=True):
        assert torch.equal(ours, theirs)
    assert look_up_bytes(large, (64, 8, 8)) == weights_bytes(large)


def test_without_the_executor_look_ups_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_lookup, "library", lambda: None)
    network = random_look_up("Pool(4096)", (8, 4, 4), 10)
    hidden = torch.randn(2, 8, 4, 4)
    assert torch.equal(ready_look_up(network, (8, 4, 4))(hidden).logits, network(hidden)[0])
