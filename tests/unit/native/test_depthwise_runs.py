"""Depthwise convolutions and gates in the executor of small layers, against the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.native.test_small_runs import Network, check

pytestmark = pytest.mark.usefixtures("instruction_set", "threads_restored")


@pytest.mark.parametrize(
    ("channels", "width", "kernel", "stride", "dilation"),
    [(37, 19, 5, 1, 1), (64, 17, 3, 2, 1), (16, 9, 3, 1, 3), (5, 23, 7, 3, 1), (33, 3, 5, 1, 1)],
)
def test_depthwise_convolutions_agree_at_every_edge_and_width(
    tmp_path: Path, channels: int, width: int, kernel: int, stride: int, dilation: int
) -> None:
    network = Network((channels, 11, width), 5)
    before = dilation * (kernel // 2)
    network.add(
        "Conv",
        network.weight(channels, 1, kernel, kernel),
        network.weight(channels),
        strides=[stride, stride],
        dilations=[dilation, dilation],
        pads=[before, before, dilation * (kernel - 1) - before, before],
        group=channels,
    )
    network.add("Relu")
    network.add("Tanh")  # a layer that stands alone is no run
    check(network.save(tmp_path), (channels, 11, width))


def test_gates_and_their_pools_agree_with_the_reference(tmp_path: Path) -> None:
    network = Network((70, 9, 7), 6)
    network.add("Conv", network.weight(70, 1, 3, 3), pads=[1, 1, 1, 1], group=70)
    gated = network.last
    network.add("GlobalAveragePool")
    network.add("Conv", network.weight(6, 70, 1, 1))
    network.add("Relu")
    network.add("Conv", network.weight(70, 6, 1, 1))
    network.add("Sigmoid")
    network.add("Mul", gated)
    network.add("Relu")
    check(network.save(tmp_path), (70, 9, 7))
