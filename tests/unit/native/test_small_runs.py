"""Runs of small layers as one call, against the operators' definition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from brisk.execution.frame import Frame
from brisk.execution.joining import LONGEST_NS, JoinedLayers
from brisk.execution.loading import LoadedProgram, load_program
from brisk.execution.serial import run_serially
from brisk.graph.reader import read_program
from brisk.native.run import SmallRun
from brisk.solutions.catalogue import reference_catalogue

pytestmark = pytest.mark.usefixtures("instruction_set", "threads_restored")

CPU = torch.device("cpu")
RTOL, ATOL = 1e-4, 1e-5


class Network:
    """An ONNX graph of one chain of nodes, put together node by node; random weights."""

    def __init__(self, sizes: tuple[int, ...], seed: int = 0) -> None:
        self.generator = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.sizes = sizes
        self.last = "x"

    def weight(self, *shape: int) -> str:
        array = self.generator.standard_normal(shape).astype(np.float32)
        array /= np.sqrt(np.prod(shape[1:], initial=1.0)).astype(np.float32)
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *others: str, **attributes: object) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, [self.last, *others], [name], **attributes))
        self.last = name
        return name

    def save(self, folder: Path, *outputs: str, integers: tuple[str, ...] = ()) -> Path:
        kinds = dict.fromkeys(integers, TensorProto.INT64)
        graph = helper.make_graph(
            self.nodes,
            "small",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *self.sizes])],
            [
                helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None)
                for name in (outputs or (self.last,))
            ],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        file = folder / "model.onnx"
        onnx.save(model, file)
        return file


def joined(file: Path) -> LoadedProgram:
    """The program, which must be one run of small layers altogether."""
    loaded = load_program(read_program(file), CPU)
    assert loaded.joined is not None
    kernels = [layer.kernel for layer in loaded.joined.layers]
    assert len(kernels) == 1, [layer.layer.main.operator for layer in loaded.joined.layers]
    assert isinstance(kernels[0], SmallRun)
    return loaded


def kinds(joined: JoinedLayers) -> list[bool]:
    """Which of the layers are runs."""
    return [isinstance(layer.kernel, SmallRun) for layer in joined.layers]


def check(file: Path, sizes: tuple[int, ...], batches: tuple[int, ...] = (1, 2, 5)) -> None:
    """The joined program agrees with the reference operators, whatever the threads."""
    loaded = joined(file)
    assert loaded.joined is not None
    expected_from = load_program(read_program(file), CPU, reference_catalogue())
    generator = np.random.default_rng(7)
    for batch in batches:
        assert batch <= loaded.joined.most_images
        x = torch.from_numpy(generator.standard_normal((batch, *sizes)).astype(np.float32))
        wanted = by_definition(expected_from, x)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found = run_serially(loaded, {"x": x})
            for name, value in wanted.items():
                assert found[name].shape == value.shape
                assert found[name].dtype == value.dtype
                np.testing.assert_allclose(found[name], value, RTOL, ATOL)


def by_definition(loaded: LoadedProgram, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """The oracle: each layer by the operators' definition."""
    values = loaded.bind_inputs({"x": x})
    for layer in loaded.layers:
        made = layer.kernel(*[values[slot] for slot in layer.reads])
        for slot, value in zip(layer.writes, made, strict=True):
            values[slot] = value
    return {name: values[slot] for name, slot in loaded.outputs.items()}


@pytest.mark.parametrize("seed", range(12))
def test_random_convolutional_networks_agree_with_the_reference(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    channels, height, width = (int(n) for n in random.integers((1, 5, 5), (20, 12, 12)))
    network = Network((channels, height, width), seed)
    for _ in range(3):
        outputs, kernel = int(random.integers(1, 70)), int(random.integers(1, 4))
        stride, dilation = (int(n) for n in random.integers(1, 3, 2))
        span = dilation * (kernel - 1) + 1
        pads = [int(n) for n in random.integers(0, kernel + 1, 4)]
        if min(height + pads[0] + pads[2], width + pads[1] + pads[3]) < span:
            continue
        group = channels if random.random() < 0.3 and channels > 1 else 1
        outputs = channels if group > 1 else outputs
        network.add(
            "Conv",
            network.weight(outputs, channels // group, kernel, kernel),
            *([network.weight(outputs)] if random.random() < 0.7 else []),
            strides=[stride, stride],
            dilations=[dilation, dilation],
            pads=pads,
            group=group,
        )
        if random.random() < 0.7:
            network.add(str(random.choice(["Relu", "Sigmoid", "Tanh", "HardSwish"])))
        channels = outputs
        height = (height + pads[0] + pads[2] - span) // stride + 1
        width = (width + pads[1] + pads[3] - span) // stride + 1
    network.add("GlobalAveragePool")
    network.add("Flatten")
    network.add("Gemm", network.weight(7, channels), network.weight(7), transB=1)
    check(network.save(tmp_path), network.sizes)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("MaxPool", {"kernel_shape": [2, 3], "dilations": [2, 1], "pads": [1, 0, 1, 2]}),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
        ("AveragePool", {"kernel_shape": [3, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
        ("GlobalMaxPool", {}),
        ("GlobalAveragePool", {}),
    ],
)
def test_pools_agree_with_the_reference(
    tmp_path: Path, operator: str, attributes: dict[str, object]
) -> None:
    network = Network((21, 9, 8))
    network.add("Relu")
    network.add(operator, **attributes)
    check(network.save(tmp_path), network.sizes)


@pytest.mark.parametrize(
    ("operator", "attributes"),
    [
        ("Relu", {}),
        ("Sigmoid", {}),
        ("Tanh", {}),
        ("HardSwish", {}),
        ("HardSigmoid", {"alpha": 1 / 6}),
        ("LeakyRelu", {"alpha": 0.2}),
        ("Gelu", {}),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # in the reference operators
def test_activations_agree_with_the_reference_far_from_zero_too(
    tmp_path: Path, operator: str, attributes: dict[str, object]
) -> None:
    network = Network((40,))
    network.add("Mul", network.weight(40))
    network.add("Gemm", network.weight(40, 40))
    network.add(operator, **attributes)
    loaded = joined(network.save(tmp_path))
    oracle = load_program(read_program(tmp_path / "model.onnx"), CPU, reference_catalogue())
    for factor in (1e-3, 1.0, 30.0, 1e4):
        x = torch.randn(3, 40, generator=torch.Generator().manual_seed(3)) * factor
        found = run_serially(loaded, {"x": x})
        wanted = by_definition(oracle, x)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, RTOL, ATOL * max(factor, 1.0))


def test_sums_constants_and_several_outputs_agree_with_the_reference(tmp_path: Path) -> None:
    network = Network((6, 7, 5))
    network.add("Mul", network.weight(6, 1, 1))
    first = network.add("Conv", network.weight(6, 6, 3, 3), pads=[1, 1, 1, 1])
    network.add("Conv", network.weight(6, 6, 3, 3), pads=[1, 1, 1, 1])
    network.add("Add", first)
    network.add("Relu")
    network.add("Flatten")
    logits = network.add("Gemm", network.weight(9, 210), network.weight(9), transB=1)
    digit = network.add("ArgMax", axis=1, keepdims=1)
    network.last = logits
    shares = network.add("Softmax", axis=1)
    file = network.save(tmp_path, first, logits, digit, shares, integers=(digit,))
    check(file, network.sizes)


@pytest.mark.parametrize("outputs", [1, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("kernel", [{"kernel_shape": [6, 7]}, {"dilations": [2, 2]}])
def test_layers_of_few_outputs_at_one_position_agree_with_the_reference(
    tmp_path: Path, outputs: int, kernel: dict[str, list[int]]
) -> None:
    """Sums over rows that are no whole vectors, tap by tap where these are apart."""
    network = Network((5, 6, 7), outputs)
    network.add("Conv", network.weight(11, 5, 3, 3), pads=[1, 1, 1, 1])
    size = kernel.get("kernel_shape", [3, 3])
    weight = network.weight(outputs, 11, *size)
    network.add("Conv", weight, network.weight(outputs), strides=[3, 3], **kernel)
    network.add("Relu")
    network.add("Flatten")
    network.add("Gemm", network.weight(10, outputs), transB=1)
    check(network.save(tmp_path), network.sizes, (1, 2, 9))


def test_nan_reaches_the_output(tmp_path: Path) -> None:
    network = Network((4, 6, 6))
    network.add("Conv", network.weight(4, 4, 3, 3), pads=[1, 1, 1, 1])
    network.add("Relu")
    network.add("MaxPool", kernel_shape=[2, 2])
    loaded = joined(network.save(tmp_path))
    x = torch.zeros(1, 4, 6, 6)
    x[0, 0, 0, 0] = torch.nan
    (found,) = run_serially(loaded, {"x": x}).values()
    assert isinstance(found, torch.Tensor)
    assert found.isnan()[0, :, 0, 0].all()
    assert not found.isnan()[0, :, 4, 4].any()


def test_a_batch_that_would_take_too_long_runs_layer_by_layer(tmp_path: Path) -> None:
    network = Network((16, 14, 14))
    for _ in range(4):
        network.add("Conv", network.weight(16, 16, 3, 3), pads=[1, 1, 1, 1])
    loaded = joined(network.save(tmp_path))
    assert loaded.joined is not None
    most = loaded.joined.most_images
    assert most * 4 * 16 * 16 * 9 * 14 * 14 / 50 <= LONGEST_NS
    for images, steps in ((most, 1), (most + 1, 4)):
        frame = Frame(loaded, {"x": torch.zeros(images, 16, 14, 14)})
        taken = 0
        while not frame.is_finished:
            frame.step()
            taken += 1
        assert taken == steps


def test_layers_that_are_large_end_a_run_and_those_behind_begin_another(tmp_path: Path) -> None:
    network = Network((8, 32, 32))
    network.add("Conv", network.weight(8, 8, 1, 1))
    network.add("MaxPool", kernel_shape=[1, 1])
    network.add("Conv", network.weight(64, 8, 3, 3), pads=[1, 1, 1, 1])
    network.add("Conv", network.weight(8, 64, 3, 3), pads=[1, 1, 1, 1])
    network.add("GlobalAveragePool")
    network.add("Flatten")
    file = network.save(tmp_path)
    loaded = load_program(read_program(file), CPU)
    assert loaded.joined is not None
    wider = loaded.joined.wider
    assert wider is not None
    assert kinds(wider) == [True, False, False, True]
    assert kinds(loaded.joined) == [True, False, True], "the compiled library's is a step, too"
    x = torch.randn(1, 8, 32, 32)
    oracle = by_definition(load_program(read_program(file), CPU, reference_catalogue()), x)
    for name, value in run_serially(loaded, {"x": x}).items():
        np.testing.assert_allclose(value, oracle[name], RTOL, ATOL)


def test_two_threads_share_every_layer_a_thousand_times_and_lose_nothing(tmp_path: Path) -> None:
    network = Network((256,))
    for _ in range(6):
        network.add("Gemm", network.weight(512, network.sizes[0]), transB=1)
        network.sizes = (512,)
    network.sizes = (256,)
    loaded = joined(network.save(tmp_path))
    x = torch.randn(2, 256)
    torch.set_num_threads(1)
    (alone,) = run_serially(loaded, {"x": x}).values()
    torch.set_num_threads(2)
    for _ in range(1000):
        (shared,) = run_serially(loaded, {"x": x}).values()
        assert torch.equal(shared, alone)  # type: ignore[arg-type]
