"""The sample models as a torch user writes them, for the torch engines of the benchmarks.

They compute the same network with random weights of their own: the same work, other answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

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
    """A transformer encoder of MiniLM-L6's shape (Devlin et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(30522, 384), nn.Embedding(512, 384)
        self.kinds, self.norm = nn.Embedding(2, 384), nn.LayerNorm(384)
        block = nn.TransformerEncoderLayer(384, 12, 1536, activation="gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(block, 6, enable_nested_tensor=False)

    def forward(
        self, tokens: torch.Tensor, attended: torch.Tensor, kinds: torch.Tensor
    ) -> torch.Tensor:
        places = self.places(torch.arange(tokens.shape[1]))
        value = self.norm(self.tokens(tokens) + self.kinds(kinds) + places)
        output: torch.Tensor = self.blocks(value, src_key_padding_mask=attended == 0)
        return output


def normalised(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Return a convolution without bias, then batch normalisation."""
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


def _unrelated() -> nn.Module:
    layers = (nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(16 * 30 * 30, 16))


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "resnet50": _resnet50,
    "encoder": Encoder,
    "mlp": _mlp,
    "unrelated": _unrelated,
}


def network_name(model: Path) -> str:
    """Return the repository entry that ``model`` (ENTRY/VERSION/model.onnx) belongs to.

    Raises LookupError if it is not written in torch.
    """
    name = model.resolve().parent.parent.name
    if name not in NETWORKS:
        raise LookupError(f"'{name}' has no torch form; there are: {', '.join(NETWORKS)}")
    return name


def save_weights(model: Path, folder: Path) -> Path:
    """Return a file in ``folder`` with weights of the model's network, always the same.

    It is made once.
    """
    target = folder / "torch.pt"
    if not target.exists():
        torch.manual_seed(0)
        torch.save(NETWORKS[network_name(model)]().state_dict(), target)
    return target


def torch_network(model: Path, weights: Path | str | None = None) -> nn.Module:
    """Return the model's network with random weights, or with mapped ones of ``save_weights``.

    Raises LookupError if there is none.
    """
    make = NETWORKS[network_name(model)]
    if weights is None:
        return make().eval()
    with torch.device("meta"):
        network = make().eval()
    network.load_state_dict(torch.load(weights, mmap=True, weights_only=True), assign=True)
    return network
