"""Networks that read texts of any length, and texts."""

from __future__ import annotations

import numpy as np
import onnx

from brisk_bench.samples.writer import GraphWriter

WORDS, WIDTH, KINDS = 50, 16, 4


def text_classifier() -> onnx.ModelProto:
    """Reads numbers of words and a mask, of any length; the mask lives until the end, so that no
    cache can stand anywhere."""
    random = np.random.default_rng(0)
    graph = GraphWriter("text", opset=17)
    words = graph.input("words", "int64", ("batch", "length"))
    mask = graph.input("mask", "float32", ("batch", "length"))
    value = graph.add("Gather", graph.weight(random.normal(0, 1, (WORDS, WIDTH))), words)
    value = graph.add("MatMul", value, graph.weight(random.normal(0, 1, (WIDTH, 2 * WIDTH))))
    value = graph.add("Relu", value)
    value = graph.add("Mul", value, graph.add("Unsqueeze", mask, graph.integers(2)))
    value = graph.add("ReduceMean", value, axes=[1], keepdims=0)
    value = graph.add("MatMul", value, graph.weight(random.normal(0, 3, (2 * WIDTH, KINDS))))
    value = graph.add("Mul", value, graph.add("ReduceMax", mask, axes=[1], keepdims=1))
    graph.output(value, "logits", "float32", ("batch", KINDS))
    return graph.model()


def text_encoder() -> onnx.ModelProto:
    """Gives a vector for each word, their mean, and how many there are."""
    random = np.random.default_rng(0)
    graph = GraphWriter("encoder", opset=17)
    words = graph.input("words", "int64", ("batch", "length"))
    mask = graph.input("mask", "float32", ("batch", "length"))
    value = graph.add("Gather", graph.weight(random.normal(0, 1, (WORDS, WIDTH))), words)
    value = graph.add("MatMul", value, graph.weight(random.normal(0, 1, (WIDTH, 2 * WIDTH))))
    value = graph.add("Tanh", value)
    value = graph.add("MatMul", value, graph.weight(random.normal(0, 1, (2 * WIDTH, 2 * WIDTH))))
    value = graph.add("Mul", value, graph.add("Unsqueeze", mask, graph.integers(2)))
    pooled = graph.add("ReduceMean", value, axes=[1], keepdims=0)
    count = graph.add("ReduceSum", mask, graph.integers(1), keepdims=0)
    count = graph.add("Cast", count, to=onnx.TensorProto.INT64)
    graph.output(value, "words_out", "float32", ("batch", "length", 2 * WIDTH))
    graph.output(pooled, "pooled", "float32", ("batch", 2 * WIDTH))
    graph.output(count, "count", "int64", ("batch",))
    return graph.model()


def texts(count: int, seed: int = 1, length: int = 12) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    mask = (np.arange(length) < random.integers(3, length + 1, (count, 1))).astype(np.float32)
    return {"words": random.integers(0, WORDS, (count, length)), "mask": mask}
