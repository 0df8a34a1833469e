"""Damage to models, of their bytes and of what these mean; a number gives one mutation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

NUMBERS = (0, 1, -1, 2, 3, 7, 13, 64, 4096, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63), 2**63 - 1)
TEXTS = (
    *("", "x", "y", "a", "w0", "w", "\0", "\n", "a'b\"c", "é" * 50, "n" * 100_000),
    *("../../etc/passwd", "/etc/passwd", "*/_ORT_MEM_ADDR_/*", "weights.bin", "model.onnx"),
    *("ai.onnx", "com.microsoft", "Loop", "If", "Identity", "Relu", "Sequence", "%s%n", "${HOME}"),
    *("<script>", "\u202e", "999"),
)
OPERATORS = (
    *("Identity", "Reshape", "Gather", "Div", "Mod", "Concat", "Loop", "Slice", "Resize", "Pad"),
    *("Tile", "Expand", "ConstantOfShape", "Range", "Transpose", "Conv", "MaxPool", "Split"),
    *("TopK", "ScatterND", "GatherND", "OneHot", "Cast", "LSTM", "Einsum", "DepthToSpace"),
    *("Where", "SequenceConstruct", "RandomNormal", "CumSum", "Unsqueeze", "Squeeze", "NonZero"),
)
FLIPS = 8


def mutate(seeds: Mapping[str, ModelProto], number: int) -> tuple[str, bytes]:
    """What was done, in words, and a model's bytes; the same for the same number."""
    rng = random.Random(number)
    name = rng.choice(sorted(seeds))
    damage = rng.choice(_OF_BYTES) if rng.random() < 0.25 else None
    if damage is not None:
        return f"{name}: {damage.__name__.strip('_')}", damage(
            seeds[name].SerializeToString(), rng
        )
    model = ModelProto()
    model.CopyFrom(seeds[name])
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        change = rng.choice(_OF_STRUCTURE)
        change(model, rng)
        done.append(change.__name__.strip("_"))
    return f"{name}: {', '.join(done)}", model.SerializeToString()


def _flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, FLIPS)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut_off(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _leave_out(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + data[start + rng.randint(1, 64) :]


def _repeat(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    part = data[start : start + rng.randint(1, 64)]
    return data[:start] + part * rng.randint(2, 4) + data[start:]


def _append_itself(data: bytes, rng: random.Random) -> bytes:
    """Protobuf merges the two."""
    return data + data


_OF_BYTES: Sequence[Callable[[bytes, random.Random], bytes]] = (
    *(_flip_bits, _flip_bits, _flip_bits, _flip_bits),
    *(_cut_off, _leave_out, _repeat, _append_itself),
)


def _messages(message: Message) -> Iterator[Message]:
    """All that are in it, itself included."""
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for each in [value] if isinstance(value, Message) else value:
                yield from _messages(each)


def _one(model: ModelProto, kind: type, rng: random.Random) -> Message | None:
    found = [each for each in _messages(model) if isinstance(each, kind)]
    return rng.choice(found) if found else None


def _delete_a_field(model: ModelProto, rng: random.Random) -> None:
    message = rng.choice([each for each in _messages(model) if each.ListFields()])
    field, value = rng.choice(message.ListFields())
    if isinstance(value, (Message, str, bytes, int, float)) or rng.random() < 0.3:
        message.ClearField(field.name)
    else:
        del value[rng.randrange(len(value))]


def _repeat_an_element(model: ModelProto, rng: random.Random) -> None:
    found = [
        (message, field, value)
        for message in _messages(model)
        for field, value in message.ListFields()
        if not isinstance(value, (Message, str, bytes, int, float))
    ]
    if found:
        _, field, value = rng.choice(found)
        chosen = value[rng.randrange(len(value))]
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            value.add().CopyFrom(chosen)
        else:
            value.append(chosen)


def _change_a_number(model: ModelProto, rng: random.Random) -> None:
    found = [
        (message, field, value)
        for message in _messages(model)
        for field, value in message.ListFields()
        if field.type in (FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_INT32)
    ]
    message, field, value = rng.choice(found)
    small = field.type == FieldDescriptor.TYPE_INT32
    number = rng.choice([n for n in NUMBERS if not small or -(2**31) <= n < 2**31])
    if isinstance(value, int):
        setattr(message, field.name, number)
    else:
        value[rng.randrange(len(value))] = number


def _change_a_text(model: ModelProto, rng: random.Random) -> None:
    found = [
        (message, field)
        for message in _messages(model)
        for field, value in message.ListFields()
        if isinstance(value, str)
    ]
    message, field = rng.choice(found)
    setattr(message, field.name, rng.choice(TEXTS))


def _rewire(model: ModelProto, rng: random.Random) -> None:
    names = [name for each in model.graph.node for name in (*each.input, *each.output)]
    node = _one(model, NodeProto, rng)
    if isinstance(node, NodeProto) and names:
        ends = node.input if node.input and rng.random() < 0.75 else node.output
        if ends:
            ends[rng.randrange(len(ends))] = rng.choice(names)


def _swap_nodes(model: ModelProto, rng: random.Random) -> None:
    nodes = [NodeProto.FromString(each.SerializeToString()) for each in model.graph.node]
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _change_an_operator(model: ModelProto, rng: random.Random) -> None:
    node = _one(model, NodeProto, rng)
    if isinstance(node, NodeProto):
        node.op_type = rng.choice(OPERATORS)
        if rng.random() < 0.3:
            del node.attribute[:]


def _change_an_attribute(model: ModelProto, rng: random.Random) -> None:
    attribute = _one(model, AttributeProto, rng)
    if not isinstance(attribute, AttributeProto):
        return
    name, way = attribute.name, rng.randrange(5)
    if way == 0:
        attribute.type = rng.randrange(15)
    else:
        value: object = {
            1: rng.choice(NUMBERS),
            2: [rng.choice(NUMBERS) for _ in range(rng.randint(1, 4))],
            3: rng.choice(TEXTS[:8]),
            4: rng.choice((float("nan"), float("inf"), -1e38, 0.0)),
        }[way]
        attribute.CopyFrom(helper.make_attribute(name, value))


def _change_a_shape(model: ModelProto, rng: random.Random) -> None:
    tensor = _one(model, TensorProto, rng)
    if isinstance(tensor, TensorProto):
        if rng.random() < 0.3:
            tensor.data_type = rng.randrange(30)
        elif tensor.dims and rng.random() < 0.7:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(NUMBERS)
        else:
            tensor.dims.append(rng.choice(NUMBERS))


def _change_values(model: ModelProto, rng: random.Random) -> None:
    """Of a tensor: sizes, indices and divisors among them."""
    tensor = _one(model, TensorProto, rng)
    if isinstance(tensor, TensorProto) and tensor.raw_data:
        size = len(tensor.raw_data)
        if rng.random() < 0.5:
            tensor.raw_data = b"\0" * size
        else:
            tensor.raw_data = _flip_bits(tensor.raw_data, rng)


def _keep_outside(model: ModelProto, rng: random.Random) -> None:
    tensor = _one(model, TensorProto, rng)
    if isinstance(tensor, TensorProto):
        size = len(tensor.raw_data)
        if rng.random() < 0.5:
            tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        del tensor.external_data[:]
        pairs = {
            "location": rng.choice(("weights.bin", "model.onnx", rng.choice(TEXTS))),
            "offset": str(rng.choice((0, 64, 8191, 8192, *NUMBERS))),
            "length": str(rng.choice((size, size, size, *NUMBERS))),
        }
        for key, value in pairs.items():
            if rng.random() < 0.9:
                tensor.external_data.add(key=key, value=value)


def _nest(model: ModelProto, rng: random.Random) -> None:
    """The graph as the body of an ``If`` of itself, several times over."""
    for _ in range(rng.choice((1, 3, 20, 40))):
        inner = GraphProto()
        inner.CopyFrom(model.graph)
        if inner.ByteSize() > 1 << 17:
            break
        node = model.graph.node.add(op_type="If", input=["x"], output=[f"nested{rng.random()}"])
        for name in ("then_branch", "else_branch"):
            attribute = node.attribute.add(name=name, type=AttributeProto.GRAPH)
            attribute.g.CopyFrom(inner)


_OF_STRUCTURE: Sequence[Callable[[ModelProto, random.Random], None]] = (
    *(_delete_a_field, _repeat_an_element, _change_a_number, _change_a_text, _rewire),
    *(_swap_nodes, _change_an_operator, _change_an_attribute, _change_a_shape),
    *(_change_values, _keep_outside, _rewire, _change_an_operator, _change_an_attribute, _nest),
)
