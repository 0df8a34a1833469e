"""The sample models as a torch user writes them, for the torch engines of the benchmarks.

They compute the same network with random weights of their own: the same work, other answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class EagerBottleneck(nn.Module):
    """ResNet's bottleneck block (He et al., 2015), the stride on the 3x3 convolution."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = normalised(inputs, outputs, 1, stride)
        self.body = nn.Sequential(
            *(normalised(inputs, width, 1), nn.ReLU()),
            *(normalised(width, width, 3, stride), nn.ReLU()),
            normalised(width, outputs, 1),
        )

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(value) + self.shortcut(value))


class Encoder(nn.Module):
    """A transformer encoder of MiniLM-L6's shape."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30522, 384), nn.Embedding(512, 384)
        self.kinds, self.norm = nn.Embedding(2, 384), nn.LayerNorm(384)
        self.blocks = nn.ModuleList(EncoderBlock(384, 12, 1536) for _ in range(6))

    def forward(
        self, tokens: torch.Tensor, attended: torch.Tensor, kinds: torch.Tensor
    ) -> torch.Tensor:
        mask = (1.0 - attended[:, None, None, :].float()) * torch.finfo(torch.float32).min
        places = self.places(torch.arange(tokens.shape[1]))
        value = self.norm(self.tokens(tokens) + self.kinds(kinds) + places)
        for block in self.blocks:
            value = block(value, mask)
        return value


class EncoderBlock(nn.Module):
    """Attention and feed-forward, each followed by its normalisation (Devlin et al., 2018)."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.first, self.second = nn.Linear(width, inner), nn.Linear(inner, width)
        self.attended, self.fed = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = [layer(value) for layer in (self.query, self.key, self.value)]
        query, key, content = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts
        )
        context = functional.scaled_dot_product_attention(query, key, content, mask)
        value = self.attended(self.out(context.transpose(1, 2).flatten(2)) + value)
        return self.fed(self.second(functional.gelu(self.first(value))) + value)


def normalised(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Convolution without bias, then batch normalisation."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def _resnet50() -> nn.Module:
    layers: list[nn.Module] = [normalised(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, (width, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for index in range(depth):
            layers.append(EagerBottleneck(inputs, width, 2 if stage and not index else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def _mlp() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()),
        *(nn.Linear(1024, 10), nn.Softmax(1)),
    )


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "resnet50": _resnet50,
    "encoder": Encoder,
    "mlp": _mlp,
}


def network_named(name: str) -> nn.Module:
    """Raises LookupError where there is none."""
    if name not in NETWORKS:
        raise LookupError(f"'{name}' has no torch form; there are: {', '.join(NETWORKS)}")
    return NETWORKS[name]()


def eager_network(model: Path) -> nn.Module:
    """The network of the repository entry that ``model`` (ENTRY/VERSION/model.onnx) belongs to.

    Raises LookupError where there is none.
    """
    return network_named(model.resolve().parent.parent.name).eval()


def saved_weights(name: str, folder: Path) -> Path:
    """A file in ``folder`` with weights of the network ``name``, always the same; made once.

    Raises LookupError where there is no such network.
    """
    target = folder / "torch.pt"
    if not target.exists():
        torch.manual_seed(0)
        torch.save(network_named(name).state_dict(), target)
    return target


def mapped_network(name: str, weights: Path) -> nn.Module:
    """The network ``name`` over the file that ``saved_weights`` made, mapped, nothing copied."""
    with torch.device("meta"):
        network = network_named(name).eval()
    network.load_state_dict(torch.load(weights, mmap=True, weights_only=True), assign=True)
    return network


def inference(network: Callable[..., Any]) -> Callable[[Mapping[str, np.ndarray]], list[Any]]:
    """What runs ``network`` on arrays, in their order, and gives its outputs as arrays."""

    def infer(inputs: Mapping[str, np.ndarray]) -> list[Any]:
        with torch.inference_mode():
            results = network(*[torch.from_numpy(array) for array in inputs.values()])
        many = results if isinstance(results, (list, tuple)) else [results]
        return [value.numpy() for value in many]

    return infer
