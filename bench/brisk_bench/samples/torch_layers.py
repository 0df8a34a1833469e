"""Layers of a trained torch network as ONNX nodes, batch normalisations unfolded."""

from __future__ import annotations

from torch import nn

from brisk_bench.samples.writer import GraphWriter


def write_layer(graph: GraphWriter, layer: nn.Module, value: str) -> str:
    """Append ``layer``, or those of a Sequential, after ``value``; return the name of its output.

    Raises TypeError for a kind of layer that no sample has.
    """
    if isinstance(layer, nn.Sequential):
        for part in layer:
            value = write_layer(graph, part, value)
        return value
    weights = [
        graph.weight(tensor.detach().float().contiguous().numpy())
        for key, tensor in layer.state_dict().items()
        if key != "num_batches_tracked"
    ]
    match layer:
        case nn.Conv2d():
            sizes = {"kernel_shape": layer.kernel_size, "strides": layer.stride}
            pads = [int(side) for side in layer.padding] * 2
            return graph.add("Conv", value, *weights, **sizes, pads=pads)
        case nn.BatchNorm2d():
            return graph.add("BatchNormalization", value, *weights, epsilon=layer.eps)
        case nn.ReLU():
            return graph.add("Relu", value)
        case nn.MaxPool2d():
            return graph.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
        case nn.AdaptiveAvgPool2d():
            return graph.add("GlobalAveragePool", value)
        case nn.Flatten():
            return graph.add("Flatten", value)
        case nn.Linear():
            return graph.add("Gemm", value, *weights, transB=1)
        case _:
            raise TypeError(f"no ONNX form is known for {type(layer).__name__}")
