"""Files and models that cannot be read say which thing is wrong; the others lose nothing."""

from __future__ import annotations

import random as randomness
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from brisk.errors import InvalidModelError, UnsupportedOperatorError
from brisk.graph.reader import build_program, read_program
from support.models.graph_models import model, random, scalar
from support.models.graph_oracle import evaluate, expected

LINEAR = "g (float[N,64] x) => (float[N,64] y) {y = MatMul(x, w)}"


def saved(path: Path, made: onnx.ModelProto) -> Path:
    path.write_bytes(made.SerializeToString())
    return path


def test_large_weights_are_views_of_the_file_and_read_only(tmp_path: Path) -> None:
    weight = random(64, 64)
    program = read_program(saved(tmp_path / "model.onnx", model(LINEAR, w=weight)))
    (array,) = (program.weights[name] for name in ("w",))
    np.testing.assert_array_equal(array, weight)
    assert not array.flags.writeable
    assert not array.flags.owndata


def test_a_file_and_a_message_make_the_same_program(tmp_path: Path) -> None:
    made = model(LINEAR, w=random(64, 64))
    x = {"x": random(2, 64, seed=1)}
    from_file = evaluate(read_program(saved(tmp_path / "model.onnx", made)), x)
    np.testing.assert_array_equal(from_file[0], evaluate(build_program(made), x)[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, not an ONNX model"),
        (b"# not a model\n" * 40, "not an ONNX model"),
        (b"\x08\x0a", "no graph or no operator set"),
        (bytes(range(256)) * 20, "not an ONNX model"),
    ],
)
def test_a_file_that_is_no_model_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(InvalidModelError, match=message) as caught:
        read_program(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match=r"absent\.onnx: cannot be read"):
        read_program(tmp_path / "absent.onnx")


def test_a_file_cut_off_anywhere_raises_only_invalid_model(tmp_path: Path) -> None:
    whole = model(LINEAR, w=random(64, 64)).SerializeToString()
    path = tmp_path / "model.onnx"
    chance = randomness.Random(0)
    for size in [1, 2, 3, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(60))]:
        path.write_bytes(whole[:size])
        with pytest.raises(InvalidModelError):
            read_program(path)


def test_damaged_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    whole = bytearray(model(LINEAR, w=random(4, 4)).SerializeToString())
    path = tmp_path / "model.onnx"
    chance = randomness.Random(1)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            read_program(path)
        except InvalidModelError:
            continue


def external(location: str, offset: int = 0, length: int | None = None) -> onnx.ModelProto:
    made = model(LINEAR, w=random(64, 64))
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset)}
    if length is not None:
        entries["length"] = str(length)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return made


def test_external_data_is_read_from_the_models_folder(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\0" * 16 + random(64, 64).tobytes())
    path = saved(tmp_path / "model.onnx", external("weights.bin", 16, 64 * 64 * 4))
    np.testing.assert_array_equal(read_program(path).weights["w"], random(64, 64))


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("absent.bin", "external data 'absent.bin' cannot be read"),
        ("../outside.bin", "outside the model's folder"),
        ("/etc/hostname", "outside the model's folder"),
        ("link.bin", "outside the model's folder"),
        ("short.bin", "which ends at 10"),
    ],
)
def test_external_data_elsewhere_or_too_short_is_refused(
    tmp_path: Path, location: str, message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "outside.bin").write_bytes(random(64, 64).tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    (folder / "short.bin").write_bytes(b"0123456789")
    path = saved(folder / "model.onnx", external(location, 0, 64 * 64 * 4))
    with pytest.raises(InvalidModelError, match=message) as caught:
        read_program(path)
    assert "tensor 'w'" in str(caught.value)


def test_external_data_without_a_folder_is_refused() -> None:
    with pytest.raises(InvalidModelError, match="none can be located"):
        build_program(external("weights.bin"))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("g (float[2] x) => (float[2] y) {y = Add(x, lost)}", "reads 'lost', which no node"),
        ("g (float[2] x) => (float[2] y) {z = Relu(x)}", "output 'y' is not computed"),
        (
            "g (float[2] x) => (float[2] y) {y = Relu(x) y = Exp(x)}",
            "value 'y' is defined twice",
        ),
        (
            "g (float[2] x) => (float[2] y) {a = Add(x, b) b = Add(x, a) y = Relu(a)}",
            "has a cycle through nodes",
        ),
        ("g (float[2] x) => (float[2] y) {y = Add(x)}", "has 1 inputs, expected 2"),
        ("g (float[2] x) => (float[2] y) {y = Cast(x)}", "lacks its attribute 'to'"),
        ("g (float[2] x) => (float[2] y) {y = Relu <slope = 2> (x)}", "no attribute 'slope'"),
    ],
)
def test_a_malformed_graph_says_what_is_wrong(graph: str, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        build_program(model(graph))


def test_a_weight_given_twice_is_refused() -> None:
    made = model(LINEAR, w=random(64, 64))
    made.graph.initializer.append(numpy_helper.from_array(random(64, 64), "w"))
    with pytest.raises(InvalidModelError, match="'w' is defined twice"):
        build_program(made)


def test_a_weight_of_the_wrong_size_is_refused() -> None:
    made = model(LINEAR, w=random(64, 64))
    made.graph.initializer[0].dims[0] = 63
    with pytest.raises(InvalidModelError, match=r"tensor 'w' of shape \[63, 64\].*needs 16128"):
        build_program(made)


@pytest.mark.parametrize(
    ("operator", "domain", "opset", "message"),
    [
        ("Frobnicate", "", 18, r"'it' \(Frobnicate, domain ai.onnx, opset 18\) is not supported"),
        ("Gelu", "", 18, r"\(Gelu, domain ai.onnx, opset 18\).*no such operator"),
        ("Add", "", 6, r"\(Add, domain ai.onnx, opset 6\).*oldest opset that is read is 7"),
        ("Relu", "", 999, r"\(Relu, domain ai.onnx, opset 999\).*newest opset"),
        ("BiasSplitGelu", "com.microsoft", 1, "domain com.microsoft is not supported"),
    ],
)
def test_an_unsupported_operator_is_named_in_full(
    operator: str, domain: str, opset: int, message: str
) -> None:
    node = helper.make_node(operator, ["x"], ["y"], name="it", domain=domain)
    value = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [value("x", 1, [2])], [value("y", 1, [2])])
    sets = [helper.make_opsetid("", 18 if domain else opset)]
    if domain:
        sets.append(helper.make_opsetid(domain, opset))
    with pytest.raises(UnsupportedOperatorError, match=message):
        build_program(helper.make_model(graph, opset_imports=sets))


def test_nodes_in_any_order_are_sorted() -> None:
    made = model("g (float[2] x) => (float[2] y) {y = Neg(z) z = Abs(x)}")
    assert [layer.operator for layer in build_program(made).layers] == ["Abs", "Neg"]


def test_an_initialiser_that_is_an_input_is_a_default_and_no_constant() -> None:
    made = model("g (float[2] x, float[2] w) => (float[2] y) {y = Mul(x, w)}", w=random(2))
    program = build_program(made)
    assert [variable.optional for variable in program.inputs] == [False, True]
    x, other = random(2, seed=1), random(2, seed=2)
    np.testing.assert_allclose(evaluate(program, {"x": x})[0], x * random(2))
    np.testing.assert_allclose(evaluate(program, {"x": x, "w": other})[0], x * other)


def test_weights_listed_as_inputs_by_old_writers_are_constants() -> None:
    made = model("g (float[2] x, float[2] w) => (float[2] y) {y = Mul(x, w)}", w=random(2))
    made.ir_version = 3
    program = build_program(made)
    assert [variable.name for variable in program.inputs] == ["x"]
    assert "w" in program.weights


def test_every_form_of_a_constant_node_becomes_a_weight() -> None:
    graph = """g (float[2] x) => (float[2] a, int64[2] b, string c, float[2] d)
    { f = Constant <value_floats = [1.0, 2.0]> ()
      i = Constant <value_ints = [3, 4]> ()
      s = Constant <value_string = "text"> ()
      t = Constant <value = float[2] {5.0, 6.0}> ()
      a = Add(x, f)  b = Identity(i)  c = Identity(s)  d = Sub(x, t) }"""
    made = model(graph)
    x = random(2)
    a, b, c, d = evaluate(build_program(made), {"x": x})
    np.testing.assert_allclose(a, x + np.array([1, 2], np.float32))
    np.testing.assert_array_equal(b, [3, 4])
    assert str(c) == "text"
    np.testing.assert_allclose(d, x - np.array([5, 6], np.float32))


@pytest.mark.parametrize("name", ["BFLOAT16", "FLOAT8E4M3FN", "INT4", "UINT4", "FLOAT16"])
def test_narrow_types_keep_their_values(name: str) -> None:
    element = getattr(TensorProto, name)
    dtype = helper.tensor_dtype_to_np_dtype(element)
    array = np.array([1, 2, 3], np.float32).astype(dtype)
    made = model("g (float[3] x) => (float[3] y) {c = Cast <to = 1> (w) y = Mul(x, c)}", 24)
    made.graph.initializer.append(numpy_helper.from_array(array, "w"))
    (result,) = evaluate(build_program(made), {"x": np.ones(3, np.float32)})
    np.testing.assert_array_equal(result, [1, 2, 3])


def test_sparse_initialisers_are_made_dense() -> None:
    made = model("g (float[2,2] x) => (float[2,2] y) {y = Add(x, w)}")
    values = numpy_helper.from_array(np.array([5.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([3], np.int64), "at")
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 2]))
    (result,) = evaluate(build_program(made), {"x": np.zeros((2, 2), np.float32)})
    np.testing.assert_array_equal(result, [[0, 0], [0, 5]])


def test_functions_are_inlined_in_functions_and_bodies() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
    g (bool c, float[2] x) => (float[2] y) {
      y = If (c) <then_branch = t () => (float[2] a) {a = own.twice(x)},
                  else_branch = e () => (float[2] b) {b = own.more <by = 3.0> (x)}> }
    <domain: "own", opset_import: ["" : 18, "own" : 1]>
    twice (v) => (r) {r = own.more <by = 2.0> (v)}
    <domain: "own", opset_import: ["" : 18]>
    more <by> (v) => (r) {k = Constant <value_float: float = @by> () r = Mul(v, k)}"""
    made = onnx.parser.parse_model(text)
    x = random(2)
    for condition, factor in ((True, 2), (False, 3)):
        (result,) = evaluate(build_program(made), {"c": np.array(condition), "x": x})
        np.testing.assert_allclose(result, x * factor)


def test_an_input_may_be_an_output_and_a_weight_may_too() -> None:
    made = model("g (float[2] x) => (float[2] x, float[2] w) {}", w=random(2))
    x, w = evaluate(build_program(made), {"x": random(2, seed=1)})
    np.testing.assert_array_equal(x, random(2, seed=1))
    np.testing.assert_array_equal(w, random(2))


def test_unknown_sizes_with_one_name_are_not_taken_for_equal() -> None:
    made = model("g (float[A,B] x) => (float[A,B] y) {y = Relu(x)}")
    for dim in made.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "?"
    shape = build_program(made).inputs[0].type.shape
    assert shape == (None, None)
    assert build_program(made).type_of("y").shape != ("?", "?")


def test_a_model_without_static_types_still_runs() -> None:
    made = model(
        "g (float[N,4] x) => (float[N,4] y) {a = Mul(x, two) y = Softmax(a)}", two=scalar(2)
    )
    made.graph.input[0].type.tensor_type.ClearField("shape")
    x = {"x": random(3, 4)}
    np.testing.assert_allclose(evaluate(build_program(made), x)[0], expected(made, x)[0])
