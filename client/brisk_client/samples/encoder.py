"""A transformer encoder of MiniLM-L6's shape with random weights.

Written in the decomposed form that torch's exporter gives at operator set 14: no
LayerNormalization, Gelu or Attention operators, but the nodes they consist of, and reshapes
computed from ``Shape``. (Devlin et al., 2018; Wang et al., 2020.)
"""

from __future__ import annotations

import numpy as np
import onnx

from brisk_client.samples.writer import GraphWriter

VOCABULARY = 30522
POSITIONS = 512
LAYERS = 6
HIDDEN = 384
HEADS = 12
HEAD_SIZE = HIDDEN // HEADS
FEED_FORWARD = 1536
_EPSILON = 1e-12
_MASKED = float(np.finfo(np.float32).min)


class _EncoderWriter:
    def __init__(self, name: str, seed: int) -> None:
        self.graph = GraphWriter(name, opset=14)
        self.random = np.random.default_rng(seed)

    def normal(self, *shape: int, deviation: float = 0.02) -> str:
        return self.graph.weight(self.random.normal(0, deviation, shape))

    def linear(self, value: str, inputs: int, outputs: int) -> str:
        weight = self.normal(inputs, outputs, deviation=inputs**-0.5)
        product = self.graph.add("MatMul", value, weight)
        return self.graph.add("Add", self.normal(outputs), product)

    def layer_normalization(self, value: str) -> str:
        graph = self.graph
        mean = graph.add("ReduceMean", value, axes=[-1])
        centred = graph.add("Sub", value, mean)
        square = graph.add("Pow", centred, graph.scalar(2.0))
        variance = graph.add("ReduceMean", square, axes=[-1])
        deviation = graph.add("Sqrt", graph.add("Add", variance, graph.scalar(_EPSILON)))
        value = graph.add("Div", centred, deviation)
        scale = graph.weight(self.random.uniform(0.8, 1.2, HIDDEN))
        return graph.add("Add", graph.add("Mul", value, scale), self.normal(HIDDEN))

    def size(self, value: str, axis: int) -> str:
        """One dimension of ``value`` as a one-element tensor."""
        graph = self.graph
        size = graph.add("Gather", graph.add("Shape", value), graph.weight(np.array(axis)), axis=0)
        return graph.add("Unsqueeze", size, graph.integers(0))

    def reshape(self, value: str, *tail: int) -> str:
        """Keep the first two dimensions of ``value`` and reshape the rest to ``tail``."""
        sizes = [self.size(value, 0), self.size(value, 1)]
        sizes += [self.graph.integers(size) for size in tail]
        return self.graph.add("Reshape", value, self.graph.add("Concat", *sizes, axis=0))

    def heads(self, value: str, order: tuple[int, ...]) -> str:
        value = self.reshape(self.linear(value, HIDDEN, HIDDEN), HEADS, HEAD_SIZE)
        return self.graph.add("Transpose", value, perm=list(order))

    def attention(self, value: str, mask: str) -> str:
        graph = self.graph
        query = self.heads(value, (0, 2, 1, 3))
        key = self.heads(value, (0, 2, 3, 1))
        values = self.heads(value, (0, 2, 1, 3))
        scores = graph.add("MatMul", query, key)
        scores = graph.add("Div", scores, graph.scalar(HEAD_SIZE**0.5))
        weights = graph.add("Softmax", graph.add("Add", scores, mask), axis=-1)
        context = graph.add("MatMul", weights, values)
        context = graph.add("Transpose", context, perm=[0, 2, 1, 3])
        return self.linear(self.reshape(context, HIDDEN), HIDDEN, HIDDEN)

    def embeddings(self, token: str, kind: str) -> str:
        graph = self.graph
        value = graph.add("Gather", self.normal(VOCABULARY, HIDDEN), token)
        value = graph.add("Add", value, graph.add("Gather", self.normal(2, HIDDEN), kind))
        positions = graph.weight(np.arange(POSITIONS, dtype=np.int64)[None], "positions")
        length = self.size(token, 1)
        positions = graph.add(
            "Slice", positions, graph.integers(0), length, graph.integers(1), graph.integers(1)
        )
        place = graph.add("Gather", self.normal(POSITIONS, HIDDEN), positions)
        return self.layer_normalization(graph.add("Add", value, place))

    def mask(self, attended: str) -> str:
        """0 where attended, the lowest float elsewhere; shape [batch, 1, 1, sequence]."""
        graph = self.graph
        value = graph.add("Unsqueeze", attended, graph.integers(1))
        value = graph.add("Unsqueeze", value, graph.integers(2))
        value = graph.add("Cast", value, to=onnx.TensorProto.FLOAT)
        return graph.add("Mul", graph.add("Sub", graph.scalar(1.0), value), graph.scalar(_MASKED))

    def block(self, value: str, mask: str) -> str:
        graph = self.graph
        attended = graph.add("Add", self.attention(value, mask), value)
        value = self.layer_normalization(attended)
        inner = self.graph.gelu(self.linear(value, HIDDEN, FEED_FORWARD))
        inner = self.linear(inner, FEED_FORWARD, HIDDEN)
        return self.layer_normalization(graph.add("Add", inner, value))


def build_encoder(name: str, seed: int) -> onnx.ModelProto:
    """Token, mask and segment ids ``[batch, sequence]`` to hidden states."""
    writer = _EncoderWriter(name, seed)
    graph = writer.graph
    shape = ("batch", "sequence")
    token = graph.input("input_ids", "int64", shape)
    attended = graph.input("attention_mask", "int64", shape)
    kind = graph.input("token_type_ids", "int64", shape)
    mask = writer.mask(attended)
    value = writer.embeddings(token, kind)
    for _ in range(LAYERS):
        value = writer.block(value, mask)
    graph.output(value, "last_hidden_state", "float32", (*shape, HIDDEN))
    return graph.model()
