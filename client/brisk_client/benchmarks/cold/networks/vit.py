"""ViT-S/16 (Dosovitskiy et al., 2021; width and heads of Touvron et al., 2021).

22 million weights, written as torch exports them at operator set 17: LayerNormalization nodes,
attention and GELU as the nodes they consist of.
"""

from __future__ import annotations

import numpy as np
import onnx

from brisk_client.benchmarks.cold.networks.layers import LayerWriter

_WIDTH, _HEADS, _BLOCKS, _INNER = 384, 6, 12, 1536
_HEAD_SIZE = _WIDTH // _HEADS
_PATCHES, _CLASSES = 196, 1000


class _VitWriter(LayerWriter):
    def __init__(self, batch: int) -> None:
        super().__init__("vit_s16", seed=384)
        self.batch = batch

    def norm(self, value: str) -> str:
        scale = self.graph.weight(self.random.uniform(0.9, 1.1, _WIDTH))
        bias = self.normal(_WIDTH, deviation=0.02)
        return self.graph.add("LayerNormalization", value, scale, bias, axis=-1, epsilon=1e-6)

    def project(self, value: str, inputs: int, outputs: int) -> str:
        weight = self.normal(inputs, outputs, deviation=inputs**-0.5)
        product = self.graph.add("MatMul", value, weight)
        return self.graph.add("Add", self.normal(outputs, deviation=0.02), product)

    def heads(self, value: str, order: tuple[int, ...]) -> str:
        value = self.project(value, _WIDTH, _WIDTH)
        shape = self.graph.integers(self.batch, _PATCHES + 1, _HEADS, _HEAD_SIZE)
        return self.graph.add(
            "Transpose", self.graph.add("Reshape", value, shape), perm=list(order)
        )

    def attention(self, value: str) -> str:
        graph = self.graph
        query = self.heads(value, (0, 2, 1, 3))
        key = self.heads(value, (0, 2, 3, 1))
        content = self.heads(value, (0, 2, 1, 3))
        scores = graph.add("MatMul", query, key)
        scores = graph.add("Mul", scores, graph.scalar(_HEAD_SIZE**-0.5))
        context = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), content)
        context = graph.add("Transpose", context, perm=[0, 2, 1, 3])
        context = graph.add("Reshape", context, graph.integers(self.batch, _PATCHES + 1, _WIDTH))
        return self.project(context, _WIDTH, _WIDTH)

    def block(self, value: str) -> str:
        graph = self.graph
        value = graph.add("Add", value, self.attention(self.norm(value)))
        inner = self.graph.gelu(self.project(self.norm(value), _WIDTH, _INNER))
        return graph.add("Add", value, self.project(inner, _INNER, _WIDTH))

    def tokens(self, image: str) -> str:
        """Patches as tokens behind the class token, with their places added."""
        graph = self.graph
        weight = self.normal(_WIDTH, 3, 16, 16, deviation=(3 * 256) ** -0.5)
        value = graph.add(
            "Conv",
            image,
            weight,
            self.normal(_WIDTH, deviation=0.02),
            kernel_shape=[16, 16],
            strides=[16, 16],
        )
        value = graph.add("Reshape", value, graph.integers(self.batch, _WIDTH, _PATCHES))
        value = graph.add("Transpose", value, perm=[0, 2, 1])
        first = self.random.normal(0, 0.02, (1, 1, _WIDTH))
        head = graph.weight(np.repeat(first, self.batch, axis=0))
        value = graph.add("Concat", head, value, axis=1)
        return graph.add("Add", value, self.normal(1, _PATCHES + 1, _WIDTH, deviation=0.02))


def build_vit(batch: int) -> onnx.ModelProto:
    """``image`` [batch, 3, 224, 224] to ``logits`` [batch, 1000]."""
    writer = _VitWriter(batch)
    graph = writer.graph
    value = writer.tokens(graph.input("image", "float32", (batch, 3, 224, 224)))
    for _ in range(_BLOCKS):
        value = writer.block(value)
    value = graph.add("Gather", writer.norm(value), graph.weight(np.array(0)), axis=1)
    value = writer.linear(value, _WIDTH, _CLASSES)
    graph.output(value, "logits", "float32", (batch, _CLASSES))
    return graph.model()
