"""Reading files: what is valid comes out as data, what is hostile or broken is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from dlc.core.errors import LimitError, ModelError
from dlc.core.types import NARROW, NARROW_INTS, DType
from dlc.frontend.onnx.limits import Limits
from dlc.frontend.onnx.load import load_model
from dlc.frontend.onnx.model import OnnxGraph, Unreadable
from dlc.graph.arrays import NUMPY_DTYPES
from tests.frontend.f32_model import model, refusal, relu, with_constant


def constant(tensor: TensorProto):
    return load_model(with_constant(tensor)).graph.constants[tensor.name]


def test_a_model_comes_out_as_data(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(model([relu()], producer_name="me"), path)
    for source in (path, str(path), path.read_bytes(), onnx.load(path)):
        loaded = load_model(source)
        assert [node.op_type for node in loaded.graph.nodes] == ["Relu"]
        assert loaded.opsets == {"": 17}
        assert loaded.producer == "me"
        assert loaded.graph.inputs[0].dtype is DType.F32
        assert loaded.graph.inputs[0].dims == (2,)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"PK\x03\x04rest", "zip"),
        (b"<!DOCTYPE html>", "web page"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"\x7fELF\x02\x01", "the model it was made of"),
        (b"\x89HDF\r\n", "Keras"),
        (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        (b"\x20\0\0\0ORTM", "onnxruntime's own format"),
        (b"hello, this is no model at all", "does not parse"),
    ],
)
def test_other_files_are_recognised(tmp_path, data, word):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert word in refusal(path)
    assert str(path) in refusal(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert "no such file" in refusal(tmp_path / "absent.onnx")
    assert "cannot be read" in refusal(tmp_path)
    assert "cannot be read" in refusal(".")


def test_a_device_is_refused_before_it_is_read():
    assert "it is a device, not a file" in refusal("/dev/zero")


@pytest.mark.parametrize("source", [None, 0, ["m.onnx"]])
def test_what_names_no_model_is_refused(source):
    assert f"got {type(source).__name__}" in refusal(source)


def test_every_truncation_is_refused():
    data = with_constant(numpy_helper.from_array(np.ones(2, np.float32), "w")).SerializeToString()
    for length in range(len(data)):
        try:
            load_model(data[:length])
        except ModelError:
            continue
        pytest.fail(f"the first {length} of {len(data)} bytes were taken for a model")


def test_flipped_bytes_raise_nothing_but_our_errors():
    proto = with_constant(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    data = bytearray(proto.SerializeToString())
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(2000):
        broken = bytearray(data)
        broken[rng.integers(len(data))] = rng.integers(256)
        try:
            load_model(bytes(broken))
        except (ModelError, LimitError):
            refused += 1
    assert refused > 500


def test_no_graph_and_no_version_are_refused():
    empty = onnx.ModelProto(ir_version=8)
    assert "no graph" in refusal(empty)
    proto = model([relu()])
    proto.ClearField("ir_version")
    assert "ir_version" in refusal(proto)


def test_an_unknown_opset_is_refused():
    assert "opset 99 is newer" in refusal(model([relu()], opset=99))
    assert "opset 0" in refusal(model([relu()], opset=0))


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([relu("z")], "reads 'z', which nothing computes"),
        ([relu("a", "b"), relu("b", "a"), relu()], "cycle"),
        ([relu("y", "y")], "cycle"),
        ([relu(), relu()], "'y', a result of node 'y', is defined twice"),
        ([relu("x", "x"), relu()], "'x', a result of node 'x', is defined twice"),
        ([relu("x", "z")], "nothing computes the output 'y'"),
    ],
)
def test_graphs_that_mean_nothing_are_refused(nodes, reason):
    assert reason in refusal(model(nodes))


def test_a_graph_without_outputs_is_refused():
    assert "no outputs" in refusal(model([relu()], outputs=()))


def test_names_defined_twice_are_refused():
    tensor = numpy_helper.from_array(np.ones(2, np.float32), "w")
    assert "'w' is defined twice" in refusal(model([relu()], constants=[tensor, tensor]))
    assert "declared twice" in refusal(model([relu()], inputs=("x", "x")))


def test_nodes_are_put_in_order_and_keep_it_where_they_can():
    nodes = [relu("b", "y"), relu("x", "a"), relu("a", "b"), relu("x", "c")]
    found = load_model(model(nodes)).graph.nodes
    assert [node.outputs[0] for node in found] == ["a", "b", "y", "c"]


def test_of_constants_with_one_name_the_last_counts(caplog):
    def node(value):
        array = numpy_helper.from_array(np.float32([value, 2]))
        return helper.make_node("Constant", [], ["c"], value=array)

    add = helper.make_node("Add", ["x", "c"], ["y"])
    kept, _ = load_model(model([node(1), node(3), add])).graph.nodes
    np.testing.assert_array_equal(kept.attributes["value"], [3, 2])
    assert "1 constants are defined twice" in caplog.text


ARRAYS = [
    np.array([[1.5, -2.0, np.inf]], np.float32),
    np.array([1.5, np.nan], np.float64),
    np.array([1.5, -0.0], np.float16),
    np.array([1.5, -3.0], ml_dtypes.bfloat16),
    np.array([-7, 300], np.int16),
    np.array([-7, 5], np.int8),
    np.array([250, 5], np.uint8),
    np.array([65000, 5], np.uint16),
    np.array([-7, 1 << 30], np.int32),
    np.array([-7, 1 << 60], np.int64),
    np.array([7, 1 << 31], np.uint32),
    np.array([7, (1 << 64) - 1], np.uint64),
    np.array([True, False]),
    np.array(3.0, np.float32),
    np.zeros((0, 3), np.float32),
]


def typed(array) -> TensorProto:
    """The array in a typed field, as no library writes it any more."""
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = TensorProto(name="w", data_type=kind, dims=array.shape)
    flat = array.reshape(-1)
    if array.dtype == np.bool_:
        flat = flat.view(np.uint8)
    if array.dtype in (np.float16, ml_dtypes.bfloat16):
        tensor.int32_data.extend(flat.view(np.uint16).tolist())
        return tensor
    names = {"f4": "float_data", "f8": "double_data", "i8": "int64_data"}
    names |= {"u8": "uint64_data", "u4": "uint64_data"}
    getattr(tensor, names.get(array.dtype.str[1:], "int32_data")).extend(flat.tolist())
    return tensor


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: str(a.dtype) + str(a.shape))
@pytest.mark.parametrize("form", ["raw", "typed"])
def test_constants_are_read_in_both_forms(array, form):
    tensor = numpy_helper.from_array(array, "w") if form == "raw" else typed(array)
    found = constant(tensor)
    assert found.dtype == array.dtype
    assert not found.flags.writeable
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("dtype", sorted(NARROW))
@pytest.mark.parametrize("form", ["raw", "typed"])
def test_elements_of_a_few_bits_are_unpacked(dtype, form):
    array = np.arange(15, dtype=np.uint8).view(NUMPY_DTYPES[dtype]).reshape(3, 5)
    if dtype in NARROW_INTS:
        array = (np.arange(15) % 4).astype(array.dtype).reshape(3, 5)
    tensor = numpy_helper.from_array(array, "w")
    if form == "typed":
        stored = np.frombuffer(tensor.raw_data, np.uint8).tolist()
        tensor.ClearField("raw_data")
        tensor.int32_data.extend(
            array.view(np.uint8).reshape(-1).tolist() if dtype.bits == 6 else stored
        )
    found = constant(tensor)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found.view(np.uint8), array.view(np.uint8))
    tensor.dims[0] = 4
    assert "its shape needs" in refusal(with_constant(tensor))


def test_element_types_dlc_lacks_are_noted_with_their_name():
    for kind in ("COMPLEX128", "COMPLEX64"):
        tensor = TensorProto(name="w", data_type=TensorProto.DataType.Value(kind), dims=[1])
        found = constant(tensor)
        assert isinstance(found, Unreadable)
        assert kind in found.reason
    assert isinstance(constant(TensorProto(name="w", data_type=999)), Unreadable)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (TensorProto(name="w", data_type=1, dims=[2], raw_data=b"\0" * 7), "7 bytes"),
        (TensorProto(name="w", data_type=1, dims=[2], raw_data=b"\0" * 12), "12 bytes"),
        (TensorProto(name="w", data_type=1, dims=[3], float_data=[1, 2]), "2 elements"),
        (TensorProto(name="w", data_type=1, dims=[2]), "0 elements"),
        (TensorProto(name="w", data_type=8, dims=[2], string_data=[b"a"]), "1 elements"),
        (TensorProto(name="w", data_type=1, dims=[-1, -2], float_data=[1, 2]), "negative size"),
    ],
)
def test_data_that_does_not_fit_its_shape_is_refused(tensor, reason):
    message = refusal(with_constant(tensor))
    assert reason in message
    assert "'w'" in message


def test_huge_shapes_are_refused_before_anything_is_allocated():
    with pytest.raises(LimitError, match="takes"):
        constant(TensorProto(name="w", data_type=1, dims=[1 << 40, 1 << 40]))
    with pytest.raises(LimitError, match="rank"):
        constant(TensorProto(name="w", data_type=1, dims=[1] * 1000, float_data=[1]))


def sparse(values, at, shape, **more) -> onnx.ModelProto:
    """A model with a constant 'w' of which only some elements are stored."""
    made = helper.make_sparse_tensor(
        numpy_helper.from_array(np.asarray(values), "w"),
        numpy_helper.from_array(np.asarray(at), "where"),
        shape,
    )
    proto = model([relu("w")], **more)
    proto.graph.sparse_initializer.append(made)
    return proto


@pytest.mark.parametrize("values", [np.float32([1, -2]), np.int8([3, 4])], ids=["f32", "i8"])
@pytest.mark.parametrize("at", [[1, 5], [[0, 1], [1, 2]]], ids=["flat", "by axis"])
def test_sparse_constants_hold_zeros_elsewhere(values, at):
    proto = sparse(values, np.array(at, np.int64), [2, 3])
    value = proto.graph.sparse_initializer[0]
    proto.graph.node.append(helper.make_node("Constant", [], ["c"], sparse_value=value))
    loaded = load_model(proto).graph
    (node,) = (n for n in loaded.nodes if n.op_type == "Constant")
    for found in (loaded.constants["w"], node.attributes["sparse_value"]):
        assert found.dtype == values.dtype
        assert not found.flags.writeable
        np.testing.assert_array_equal(found, [[0, values[0], 0], [0, 0, values[1]]])


def test_sparse_constants_may_be_empty_or_scalars():
    nothing = np.zeros(0, np.int64)
    assert not load_model(sparse(np.zeros(0, np.float32), nothing, [2])).graph.constants["w"].any()
    assert (
        load_model(sparse(np.zeros(0, np.float32), nothing, [0, 3])).graph.constants["w"].size == 0
    )
    assert load_model(sparse(np.float32([7]), np.int64([0]), [])).graph.constants["w"] == 7


@pytest.mark.parametrize(
    ("at", "shape", "reason"),
    [
        ([1, 6], [2, 3], "outside of its shape"),
        ([-1, 1], [2, 3], "outside of its shape"),
        ([[0, 3], [1, 0]], [2, 3], "outside of its shape"),
        ([4, 4], [2, 3], "two values"),
        ([[1, 1], [1, 1]], [2, 3], "two values"),
        ([0, 0], [], "two values"),
        ([1], [2, 3], "no such number of positions"),
        ([[1], [2]], [2, 3], "no such number of positions"),
        ([[], []], [], "no such number of positions"),
        ([1, 2], [-2, -3], "negative size"),
    ],
)
def test_positions_that_do_not_fit_are_refused(at, shape, reason):
    message = refusal(sparse(np.float32([1, 2]), np.array(at, np.int64), shape))
    assert reason in message
    assert "'w'" in message


def test_positions_are_64_bit_integers():
    assert "positions" in refusal(sparse(np.float32([1]), np.int32([0]), [3]))


def test_small_files_of_huge_sparse_constants_are_refused():
    at = np.array([1], np.int64)
    with pytest.raises(LimitError, match="takes"):
        load_model(sparse(np.float32([1]), at, [1 << 20, 1 << 20]))
    with pytest.raises(LimitError, match="takes 4000 bytes"):
        load_model(sparse(np.float32([1]), at, [1000]), limits=Limits(sparse_bytes=3999))


def test_a_sparse_constant_of_another_name_only():
    proto = sparse(np.float32([1]), np.int64([0]), [3])
    proto.graph.sparse_initializer.append(proto.graph.sparse_initializer[0])
    assert "'w' is defined twice" in refusal(proto)


def nested(depth: int) -> onnx.GraphProto:
    graph = helper.make_graph([relu("x", "o")], "inner", [], [])
    for _ in range(depth):
        node = helper.make_node("If", ["c"], ["o"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], "outer", [], [])
    return graph


def test_limits_hold():
    nodes = [relu("x", f"v{i}") for i in range(20)] + [relu()]
    with pytest.raises(LimitError, match="more than 10 nodes"):
        load_model(model(nodes), limits=Limits(nodes=10))
    loop = helper.make_node("Loop", ["", ""], [], body=nested(3))
    with pytest.raises(LimitError, match="nested more than 2 deep"):
        load_model(model([loop, relu()]), limits=Limits(nesting=2))
    node = helper.make_node("Relu", ["x"], ["y"], big=list(range(100)))
    with pytest.raises(LimitError, match="attribute 'big'"):
        load_model(model([node]), limits=Limits(attribute_elems=99))


def test_deep_nesting_is_refused():
    body = helper.make_graph([relu("x", "o")], "inner", [], [])
    for _ in range(80):
        outer = onnx.GraphProto(name="outer")
        attribute = outer.node.add(op_type="Loop").attribute.add(name="body")
        attribute.type = AttributeProto.GRAPH
        attribute.g.CopyFrom(body)
        body = outer
    proto = model([relu()])
    proto.graph.node.add(op_type="Loop").attribute.add(
        name="body", type=AttributeProto.GRAPH
    ).g.CopyFrom(body)
    with pytest.raises((LimitError, ModelError)):
        load_model(proto.SerializeToString())
    with pytest.raises(LimitError):
        load_model(proto)


def test_attributes_of_every_kind_are_read():
    node = helper.make_node(
        "Relu", ["x"], ["y"], f=1.5, i=-3, s="text", fs=[1.0, 2.5], ii=[3, 4], ss=["a", "b"],
        t=numpy_helper.from_array(np.int64([7])), g=nested(0),
    )  # fmt: skip
    found = load_model(model([node])).graph.nodes[0].attributes
    assert [found[k] for k in ("f", "i", "s", "fs", "ii", "ss")] == [
        1.5, -3, "text", (1.0, 2.5), (3, 4), ("a", "b"),
    ]  # fmt: skip
    np.testing.assert_array_equal(found["t"], [7])
    assert isinstance(found["g"], OnnxGraph)


def test_an_attribute_given_twice_is_refused():
    node = helper.make_node("LeakyRelu", ["x"], ["y"], alpha=1.5)
    node.attribute.append(helper.make_attribute("alpha", 2.5))
    assert "more than once" in refusal(model([node]))


# External data.


# Functions.


def function(name, nodes, inputs=("a",), outputs=("b",), attributes=(), defaults=()):
    return helper.make_function(
        "local", name, list(inputs), list(outputs), nodes,
        [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)],
        list(attributes), list(defaults),
    )  # fmt: skip


def with_functions(functions, nodes) -> onnx.ModelProto:
    proto = model(nodes)
    proto.functions.extend(functions)
    proto.opset_import.append(helper.make_opsetid("local", 1))
    return proto


def local(name, x="x", y="y", **attributes):
    return helper.make_node(name, [x], [y], domain="local", **attributes)


def test_functions_are_inlined_with_their_attributes():
    leaky = helper.make_node("LeakyRelu", ["a"], ["t"])
    reference = leaky.attribute.add(name="alpha", type=AttributeProto.FLOAT)
    reference.ref_attr_name = "slope"
    half = function("Half", [leaky, relu("t", "b")], attributes=["slope"])
    twice = function("Twice", [local("Half", "a", "t", slope=0.5), local("Half", "t", "b")])
    found = load_model(with_functions([half, twice], [local("Twice")])).graph.nodes
    assert [node.op_type for node in found] == ["LeakyRelu", "Relu"] * 2
    assert found[0].attributes == {"alpha": 0.5}
    assert found[2].attributes == {}
    assert found[-1].outputs == ("y",)
    assert len({name for node in found for name in node.outputs}) == 4


def test_a_function_that_passes_its_operand_through_is_inlined():
    passes = function("Same", [relu("a", "t")], inputs=("a",), outputs=("a",))
    found = load_model(with_functions([passes], [local("Same")])).graph.nodes
    assert [(n.op_type, n.inputs, n.outputs) for n in found][-1] == ("Identity", ("x",), ("y",))


def test_functions_that_call_themselves_are_refused():
    ping = function("Ping", [local("Pong", "a", "b")])
    pong = function("Pong", [local("Ping", "a", "b")])
    assert "calls itself" in refusal(with_functions([ping, pong], [local("Ping")]))


def test_functions_that_double_are_refused_before_they_are_expanded():
    functions = [function("F0", [relu("a", "b")])]
    for i in range(1, 60):
        calls = [local(f"F{i - 1}", "a", "t"), local(f"F{i - 1}", "t", "b")]
        functions.append(function(f"F{i}", calls))
    with pytest.raises(LimitError, match="after inlining"):
        load_model(with_functions(functions, [local("F59")]))


def test_a_call_with_too_many_operands_is_refused():
    one = function("One", [relu("a", "b")])
    node = helper.make_node("One", ["x", "x"], ["y"], domain="local")
    assert "more values" in refusal(with_functions([one], [node]))


@pytest.mark.parametrize(
    ("what", "old"),
    [("node", b"relu_node"), ("value", b"relu_value"), ("tensor", b"relu_data"), ("op", b"Relu")],
)
def test_text_that_is_none_is_refused(what, old):
    node = helper.make_node("Relu", ["relu_data"], ["relu_value"], "relu_node")
    output = helper.make_tensor_value_info("relu_value", 1, (2,))
    weight = numpy_helper.from_array(np.ones(2, np.float32), "relu_data")
    graph = helper.make_graph([node], "g", [], [output], [weight])
    data = helper.make_model(graph).SerializeToString()
    with pytest.raises(ModelError, match="is not UTF-8"):
        load_model(data.replace(old, b"\xff" * len(old)))


def test_a_location_that_is_no_text_is_refused():
    tensor = TensorProto(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="where")
    node = helper.make_node("Relu", ["w"], ["y"])
    output = helper.make_tensor_value_info("y", 1, (2,))
    data = helper.make_model(
        helper.make_graph([node], "g", [], [output], [tensor])
    ).SerializeToString()
    with pytest.raises(ModelError, match="is not UTF-8"):
        load_model(data.replace(b"where", b"\xff" * 5))
