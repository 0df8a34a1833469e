"""A small convolutional network, really trained on scikit-learn's handwritten digits.

1,797 images of 8x8 pixels (values 0 to 16), ten classes; a fifth is held out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from brisk_bench.samples.torch_layers import write_layer
from brisk_bench.samples.writer import GraphWriter

CLASSES = 10
_BATCH = 64
_LEARNING_RATE = 4e-3


@dataclass(frozen=True, slots=True)
class DigitsRecipe:
    """The size and training of a network.

    ``channels``: of the convolutions.
    ``pooled``: a pooling follows the convolution of this number (counted from 0).
    """

    channels: tuple[int, ...]
    pooled: int
    epochs: int
    seed: int


@dataclass(frozen=True, slots=True)
class DigitsSplit:
    """Images float32 [count, 1, 8, 8] in 0..16, labels int64 [count]."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def digits_split() -> DigitsSplit:
    """Return the same split on every call."""
    digits = load_digits()
    images = digits.images.astype(np.float32)[:, None]
    labels = digits.target.astype(np.int64)
    parts = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return DigitsSplit(parts[0], parts[2], parts[1], parts[3])


def _network(recipe: DigitsRecipe) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = 1
    for index, outputs in enumerate(recipe.channels):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        if index == recipe.pooled:
            layers.append(nn.MaxPool2d(2))
        inputs = outputs
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)
    )


def train_digits(name: str, recipe: DigitsRecipe) -> onnx.ModelProto:
    """Train with one thread, so that the same machine gives the same weights."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            network = _trained(recipe, digits_split())
    finally:
        torch.set_num_threads(threads)
    graph = GraphWriter(name, opset=18)
    value = graph.input("image", "float32", ("batch", 1, 8, 8))
    value = graph.add("Div", value, graph.scalar(16.0))
    value = write_layer(graph, network, value)
    digit = graph.add("ArgMax", value, axis=1, keepdims=1)
    graph.output(value, "logits", "float32", ("batch", CLASSES))
    graph.output(digit, "digit", "int64", ("batch", 1))
    return graph.model()


def _trained(recipe: DigitsRecipe, split: DigitsSplit) -> nn.Sequential:
    images = torch.from_numpy(split.train_images) / 16
    labels = torch.from_numpy(split.train_labels)
    network = _network(recipe)
    batches = -(-len(images) // _BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=_LEARNING_RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, _LEARNING_RATE, total_steps=batches * recipe.epochs
    )
    for _ in range(recipe.epochs):
        for chosen in torch.split(torch.randperm(len(images)), _BATCH):
            loss = nn.functional.cross_entropy(network(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return network.eval()
