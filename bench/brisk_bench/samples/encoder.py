"""A transformer encoder of MiniLM-L6's shape with random weights.

Written in the decomposed form that torch's exporter gives at operator set 14: no
LayerNormalization, Gelu or Attention operators, but the nodes they consist of, and reshapes
computed from ``Shape``. (Devlin et al., 2018; Wang et al., 2020.)
"""

from __future__ import annotations

import numpy as np
import onnx

from brisk_bench.samples.writer import GraphWriter

VOCABULARY = 30522
POSITIONS = 512
LAYERS = 6
HIDDEN = 384
HEADS = 12
HEAD_SIZE = HIDDEN // HEADS
FEED_FORWARD = 1536
_EPSILON = 1e-12
_MASKED = float(np.finfo(np.float32).min)


class _Encoder(GraphWriter):
    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, opset=14)
        self.random = np.random.default_rng(seed)

    def normal(self, *shape: int, deviation: float = 0.02) -> str:
        return self.weight(self.random.normal(0, deviation, shape))

    def linear(self, value: str, inputs: int, outputs: int) -> str:
        weight = self.normal(inputs, outputs, deviation=inputs**-0.5)
        product = self.add("MatMul", value, weight)
        return self.add("Add", self.normal(outputs), product)

    def layer_normalization(self, value: str) -> str:
        mean = self.add("ReduceMean", value, axes=[-1])
        centred = self.add("Sub", value, mean)
        square = self.add("Pow", centred, self.scalar(2.0))
        variance = self.add("ReduceMean", square, axes=[-1])
        deviation = self.add("Sqrt", self.add("Add", variance, self.scalar(_EPSILON)))
        value = self.add("Div", centred, deviation)
        scale = self.weight(self.random.uniform(0.8, 1.2, HIDDEN))
        return self.add("Add", self.add("Mul", value, scale), self.normal(HIDDEN))

    def size(self, value: str, axis: int) -> str:
        """Return one dimension of ``value`` as a one-element tensor."""
        size = self.add("Gather", self.add("Shape", value), self.weight(np.array(axis)), axis=0)
        return self.add("Unsqueeze", size, self.integers(0))

    def reshape(self, value: str, *tail: int) -> str:
        """Keep the first two dimensions of ``value`` and reshape the rest to ``tail``."""
        sizes = [self.size(value, 0), self.size(value, 1)]
        sizes += [self.integers(size) for size in tail]
        return self.add("Reshape", value, self.add("Concat", *sizes, axis=0))

    def heads(self, value: str, order: tuple[int, ...]) -> str:
        value = self.reshape(self.linear(value, HIDDEN, HIDDEN), HEADS, HEAD_SIZE)
        return self.add("Transpose", value, perm=list(order))

    def attention(self, value: str, mask: str) -> str:
        query = self.heads(value, (0, 2, 1, 3))
        key = self.heads(value, (0, 2, 3, 1))
        values = self.heads(value, (0, 2, 1, 3))
        scores = self.add("MatMul", query, key)
        scores = self.add("Div", scores, self.scalar(HEAD_SIZE**0.5))
        weights = self.add("Softmax", self.add("Add", scores, mask), axis=-1)
        context = self.add("MatMul", weights, values)
        context = self.add("Transpose", context, perm=[0, 2, 1, 3])
        return self.linear(self.reshape(context, HIDDEN), HIDDEN, HIDDEN)

    def embeddings(self, token: str, kind: str) -> str:
        value = self.add("Gather", self.normal(VOCABULARY, HIDDEN), token)
        value = self.add("Add", value, self.add("Gather", self.normal(2, HIDDEN), kind))
        positions = self.weight(np.arange(POSITIONS, dtype=np.int64)[None], "positions")
        length = self.size(token, 1)
        positions = self.add(
            "Slice", positions, self.integers(0), length, self.integers(1), self.integers(1)
        )
        place = self.add("Gather", self.normal(POSITIONS, HIDDEN), positions)
        return self.layer_normalization(self.add("Add", value, place))

    def mask(self, attended: str) -> str:
        """Return 0 where attended, the lowest float elsewhere; shape [batch, 1, 1, sequence]."""
        value = self.add("Unsqueeze", attended, self.integers(1))
        value = self.add("Unsqueeze", value, self.integers(2))
        value = self.add("Cast", value, to=onnx.TensorProto.FLOAT)
        return self.add("Mul", self.add("Sub", self.scalar(1.0), value), self.scalar(_MASKED))

    def block(self, value: str, mask: str) -> str:
        attended = self.add("Add", self.attention(value, mask), value)
        value = self.layer_normalization(attended)
        inner = self.gelu(self.linear(value, HIDDEN, FEED_FORWARD))
        inner = self.linear(inner, FEED_FORWARD, HIDDEN)
        return self.layer_normalization(self.add("Add", inner, value))


def build_encoder(name: str, seed: int) -> onnx.ModelProto:
    """Build a model from token, mask and segment ids ``[batch, sequence]`` to hidden states."""
    graph = _Encoder(name, seed)
    shape = ("batch", "sequence")
    token = graph.input("input_ids", "int64", shape)
    attended = graph.input("attention_mask", "int64", shape)
    kind = graph.input("token_type_ids", "int64", shape)
    mask = graph.mask(attended)
    value = graph.embeddings(token, kind)
    for _ in range(LAYERS):
        value = graph.block(value, mask)
    graph.output(value, "last_hidden_state", "float32", (*shape, HIDDEN))
    return graph.model()
