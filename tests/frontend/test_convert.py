"""Conversion of whole graphs: schemas, refusals, names, dimensions, sizes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dlc.core.errors import ModelError, ShapeError, UnsupportedModel, UserError
from dlc.frontend.onnx import FAMILIES, import_model, load_model
from dlc.frontend.onnx.interface import plain_dims
from dlc.frontend.onnx.registry import CONVERTERS
from dlc.graph.evaluate import evaluate
from dlc.graph.text import parse_graph, print_graph
from tests.frontend.onnx_model import NODE, graph_of, model, one, ops_of, refusals, refused

# The schema.


@pytest.mark.parametrize(
    ("node", "field", "value"),
    [
        (NODE("HardSigmoid", ["x"], ["y"]), "alpha", 0.2),
        (NODE("InstanceNormalization", ["x", "c", "c"], ["y"]), "epsilon", 1e-5),
    ],
)
def test_a_default_is_a_float32_as_what_stands_in_a_model_is(node, field, value):
    left_out = graph_of(model([node], {"x": (1, 2, 3, 5)}, {"c": one([1, 2])})).nodes[-1].op
    node.attribute.append(helper.make_attribute(field, value))
    given = graph_of(model([node], {"x": (1, 2, 3, 5)}, {"c": one([1, 2])})).nodes[-1].op
    assert left_out == given
    assert getattr(given, field) == np.float32(value)


def test_an_attribute_nobody_reads_is_refused():
    message = refused(NODE("Relu", ["x"], ["y"], "r", slope=0.5))
    assert "node 'r': ONNX Relu-17" in message
    assert "attribute 'slope' is not handled" in message


def declared(kind: int, shape: list[int | str]) -> onnx.ModelProto:
    """A Relu of f32[2, 3], declared as something else."""
    wrong = model([NODE("Relu", ["x"], ["y"])], {"x": (2, 3)})
    wrong.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, shape))
    return wrong


def test_an_output_declared_with_another_element_type_is_refused():
    with pytest.raises(ModelError, match="output 'y' is declared as i64, and is f32"):
        import_model(load_model(declared(TensorProto.INT64, [2, 3])))


@pytest.mark.parametrize(
    ("shape", "said"), [([4, 3], "4, 3"), ([6], "6"), (["n", 3], ""), ([-1, 3], "")]
)
def test_an_output_declared_with_other_sizes_is_worth_a_warning(shape, said, caplog):
    graph_of(declared(TensorProto.FLOAT, shape))
    assert caplog.text.count("is declared as") == bool(said)
    assert f"output 'y' is declared as f32[{said}], and is f32[2, 3]" in caplog.text or not said


def test_an_operand_nobody_takes_is_refused():
    assert "operand 2 ('x')" in refused(NODE("Relu", ["x", "x"], ["y"]))
    both = NODE("Softmax", ["x", "", "x"], ["y"])
    assert "operand 3 ('x')" in refused(both)


def test_an_operand_absent_in_the_middle_is_refused():
    (message,) = refusals(model([NODE("Concat", ["x", "", "x"], ["y"], axis=0)], {"x": (2, 3)}))
    assert "absent in the middle" in message


def test_parts_that_do_not_make_up_the_whole_are_refused():
    node = NODE("Split", ["x", "s"], ["y", "z"], axis=-1)
    (message,) = refusals(model([node], {"x": (2, 7)}, {"s": np.int64([3, 3])}, outputs=["y", "z"]))
    assert "do not make up 7" in message


def test_a_value_of_the_wrong_type_is_refused():
    assert "not float" in refused(NODE("LeakyRelu", ["x"], ["y"], alpha=[1, 2]))
    assert "not int" in refused(NODE("Softmax", ["x"], ["y"], axis="last"))


@pytest.mark.parametrize(
    ("node", "word"),
    [
        (NODE("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], auto_pad="SAME"), "auto_pad"),
        (NODE("Gelu", ["x"], ["y"], approximate="sigmoid"), "approximate"),
        (NODE("Resize", ["x", "", "s"], ["y"], mode="lanczos"), "mode"),
        (NODE("Resize", ["x", "", "s"], ["y"], nearest_mode="up"), "nearest_mode"),
        (
            NODE("Resize", ["x", "", "s"], ["y"], coordinate_transformation_mode="middle"),
            "coordinate_transformation_mode",
        ),
        (NODE("Pad", ["x", "p"], ["y"], mode="mirror"), "mode"),
        (NODE("LpNormalization", ["x"], ["y"], p=3), "p = 3"),
        (NODE("Softmax", ["x"], ["y"], axis=4), "axis 4"),
        (NODE("Transpose", ["x"], ["y"], perm=[0, 1, 2, 2]), "perm"),
        (NODE("Cast", ["x"], ["y"], to=TensorProto.COMPLEX64), "COMPLEX64"),
        (NODE("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[0, 1]), "positive"),
        (NODE("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], pads=[1, 1]), "pads has 2"),
        (NODE("ConstantOfShape", ["k"], ["y"], value=numpy_helper.from_array(one([1, 2]))), "2 el"),
        (NODE("ConstantOfShape", ["far"], ["y"]), "beyond all limits"),
        (NODE("GroupNormalization", ["x", "k", "k"], ["y"], num_groups=0), "0 groups"),
        (NODE("GroupNormalization", ["k", "k", "k"], ["y"], num_groups=1), "1 groups of i64[1]"),
        (NODE("Frobnicate", ["x"], ["y"]), "no converter"),
        (NODE("Expand", ["x", "t"], ["y"]), "no whole numbers"),
        (NODE("BatchNormalization", ["k"] * 5, ["y", "m", "v"], training_mode=1), "of channels"),
    ],
)
def test_values_nobody_knows_are_refused(node, word):
    constants = {
        "s": one([1, 1, 2, 2]), "p": np.int64([0] * 8), "t": np.bool_(True), "k": np.int64([1]),
        "far": np.int64([0, 2**62, 8]),
    }  # fmt: skip
    assert word in refused(node, constants=constants, opset=20)


def test_a_result_of_negative_size_is_refused():
    node = NODE("OneHot", ["x", "depth", "values"], ["y"])
    constants = {"depth": np.int64(-2), "values": one([0, 1])}
    (message,) = refusals(model([node], {"x": (3,)}, constants, kinds={"x": "i"}))
    assert "the size -2" in message


def test_sizes_repeated_less_than_no_times_are_refused():
    nodes = [NODE("Shape", ["x"], ["s"]), NODE("Tile", ["s", "times"], ["y"])]
    (message,) = refusals(model(nodes, {"x": ("n", 3)}, {"times": np.array([-9])}))
    assert "repeated -9 times" in message


@pytest.mark.parametrize("count", [1000, 10**8])
@pytest.mark.parametrize("op", ["Tile", "Expand"])
def test_sizes_repeated_often_are_no_formulas(op, count):
    nodes = [NODE("Shape", ["x"], ["s"]), NODE(op, ["s", "count"], ["y"])]
    graph = graph_of(model(nodes, {"x": ("n",)}, {"count": np.array([count])}))
    assert [str(size) for size in graph.outputs[0].type.shape] == [str(count)]
    assert (op.lower() in ops_of(graph)) == (count > 1000)


def test_every_refusal_is_reported_at_once():
    nodes = [
        NODE("Frob", ["x"], ["a"], "first"),
        NODE("Relu", ["a"], ["b"], "between"),
        NODE("Relu", ["b"], ["c"], "second", slope=1),
        NODE("Nicate", ["x"], ["d"], "third"),
        NODE("Add", ["c", "d"], ["y"], "last"),
    ]
    with pytest.raises(UnsupportedModel) as caught:
        graph_of(model(nodes, {"x": (2, 3)}))
    found = [issue.fields["node"] for issue in caught.value.issues]
    assert found == ["first", "second", "third"]
    assert "3 of 5 nodes" in str(caught.value)
    assert "first: Frob-17(f32[2, 3])" in str(caught.value)


@pytest.mark.parametrize(
    ("declared", "seen"),
    [((2, 3), "f32[2, 3]"), ((9, 9, 9), "f32[9, 9, 9]"), (("k", 3), "f32[k, 3]")],
)
def test_behind_an_unsupported_node_the_declared_type_is_shown_and_not_trusted(declared, seen):
    nodes = [
        NODE("Frob", ["x"], ["a"], "first"),
        NODE("MatMul", ["a", "w"], ["b"], "product"),
        NODE("Nicate", ["a", "b"], ["y"], "last"),
    ]
    proto = model(nodes, {"x": ("n", 3)}, {"w": np.ones((3, 5), np.float32)})
    proto.graph.value_info.append(helper.make_tensor_value_info("a", 1, declared))
    with pytest.raises(UnsupportedModel) as caught:
        graph_of(proto)
    product = "?" if declared[-1] == 9 else f"{seen[:-2]}5]"
    assert f"last: Nicate-17({seen}, {product}) -> " in str(caught.value)


def test_an_unsupported_node_in_a_branch_is_named():
    branches = {
        name: helper.make_graph(
            [NODE(op, ["x"], [name], name)], name, [], [onnx.ValueInfoProto(name=name)]
        )
        for name, op in (("good", "Neg"), ("bad", "Frob"))
    }
    node = NODE(
        "If", ["c"], ["y"], "choice", then_branch=branches["good"], else_branch=branches["bad"]
    )
    other = NODE(
        "If", ["c"], ["z"], "other", then_branch=branches["bad"], else_branch=branches["bad"]
    )
    proto = model([node, other], {"x": (2, 3), "c": ()}, kinds={"c": "b"}, outputs=["y", "z"])
    with pytest.raises(UnsupportedModel, match="Frob-17 'bad' in it: there is no converter"):
        graph_of(proto)


def test_of_many_refusals_the_first_are_printed_and_all_are_kept():
    nodes = [NODE("Frob", ["x"], [f"v{i}"]) for i in range(99)]
    nodes.append(NODE("Sum", [f"v{i}" for i in range(99)], ["y"]))
    with pytest.raises(UnsupportedModel) as caught:
        graph_of(model(nodes, {"x": (2, 3)}))
    assert len(caught.value.issues) == 99
    assert "99 of 100 nodes" in str(caught.value)
    assert "and 69 more" in str(caught.value)
    assert "hint" not in caught.value.issues[0].hint


@pytest.mark.parametrize(
    ("op_type", "domain", "told"),
    [
        ("Frob", "com.example", "this is a custom operator"),
        ("Bar", "", "ONNX has no operator Bar at opset 17"),
        ("Relo", "", "ONNX has no operator Relo at opset 17; did you mean Relu?"),
        ("Swish", "", "ONNX has no operator Swish at opset 17, only from 24 on"),
        ("Scalar", "ai.onnx.ml", "at opset 3 of ai.onnx.ml; did you mean Scaler?"),
    ],
)
def test_an_operator_that_nobody_knows_is_told_from_one_of_another_domain(op_type, domain, told):
    proto = model([NODE(op_type, ["x"], ["y"], domain=domain)], {"x": (2, 3)})
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 3))
    with pytest.raises(UnsupportedModel) as caught:
        graph_of(proto)
    assert told in caught.value.issues[0].hint


def test_an_unknown_operator_of_onnxruntime_is_no_custom_one():
    node = NODE("Frob", ["x"], ["y"], domain="com.microsoft")
    with pytest.raises(UnsupportedModel) as caught:
        graph_of(model([node], {"x": (2, 3)}))
    assert "before onnxruntime optimized it" in caught.value.issues[0].hint


def test_a_missing_operand_or_attribute_is_an_error_of_the_model():
    for node, word in (
        (NODE("Add", ["x"], ["y"]), "needs 2 operands"),
        (NODE("Add", ["x", ""], ["y"]), "needs 2 operands"),
        (NODE("Concat", ["x"], ["y"]), "the attribute 'axis'"),
    ):
        with pytest.raises(ModelError, match=word):
            graph_of(model([node], {"x": (2, 3)}))


def test_operands_that_do_not_fit_name_the_node():
    nodes = [NODE("Add", ["x", "c"], ["y"], "sum")]
    with pytest.raises(ShapeError, match="node 'sum'"):
        graph_of(model(nodes, {"x": (2, 3)}, {"c": np.ones(5, np.float32)}))


def test_sizes_of_another_rank_are_not_joined():
    nodes = [
        NODE("Shape", ["x"], ["size"]),
        NODE("Concat", ["size", "c"], ["y"], "join", axis=0),
    ]
    with pytest.raises(ShapeError, match="node 'join'"):
        graph_of(model(nodes, {"x": ("n", 3)}, {"c": np.ones((2, 1), np.int64)}))


def test_a_constant_of_a_type_dlc_lacks_is_refused_where_it_is_read():
    proto = model([NODE("Add", ["x", "c"], ["y"])], {"x": (2, 3)})
    proto.graph.initializer.append(TensorProto(name="c", data_type=TensorProto.COMPLEX64, dims=[1]))
    (message,) = refusals(proto)
    assert "COMPLEX64" in message
    proto.graph.node[0].input[1] = "x"
    assert ops_of(graph_of(proto)) == ["add"]


def test_every_converter_belongs_to_a_family():
    entries = [entry for versions in CONVERTERS.values() for entry in versions.values()]
    modules = {entry.fn.__module__ for entry in entries}
    assert modules == {family.__name__ for family in FAMILIES}


# Names and dimensions.


def test_names_become_identifiers_and_stay_known():
    nodes = [NODE("Relu", ["in put.1"], ["/a/b"]), NODE("Relu", ["/a/b"], ["def"])]
    found = import_model(load_model(model(nodes, {"in put.1": ("batch", 3)}, outputs=["def"])))
    assert found.interface.inputs == ("in put.1",)
    assert found.interface.outputs == ("def",)
    assert [v.name for v in found.graph.inputs] == ["in_put_1"]
    assert [n.output.name for n in found.graph.nodes] == ["a_b", "def_"]
    assert parse_graph(print_graph(found.graph)) == found.graph


def test_names_that_become_alike_stay_apart():
    nodes = [NODE("Relu", ["a.b"], ["a/b"]), NODE("Relu", ["a/b"], ["a-b"])]
    graph = graph_of(model(nodes, {"a.b": ("a.b", 3)}, outputs=["a-b"]))
    names = [*graph.sizes, graph.inputs[0].name, *(n.output.name for n in graph.nodes)]
    assert len(set(names)) == 4


def test_an_input_with_an_initializer_is_a_constant():
    proto = model([NODE("Add", ["x", "w"], ["y"])], {"x": (3,), "w": (3,)}, {"w": one([1, 2, 3])})
    graph = graph_of(proto)
    assert [v.name for v in graph.inputs] == ["x"]
    assert len(graph.constants) == 1


def test_an_output_may_be_an_input_or_a_constant_or_given_twice():
    proto = model([NODE("Relu", ["x"], ["y"])], {"x": (3,)}, {"w": one([7])}, ["x", "w", "y", "y"])
    graph = graph_of(proto)
    found = evaluate(graph, {"x": one([-1, 0, 2])})
    values = [found[v.name] for v in graph.outputs]
    # So does PyTorch's exporter write what a model returns twice; it is one output.
    for value, want in zip(values, ([-1, 0, 2], [7], [0, 0, 2]), strict=True):
        np.testing.assert_array_equal(value, want)


def shape_of(proto, **options) -> str:
    return str(graph_of(proto, **options).inputs[0].type)


def test_dimensions_are_named_fixed_and_bounded():
    proto = model([NODE("Relu", ["x"], ["y"])], {"x": ("batch size", None, "?", 4)})
    assert shape_of(proto) == "f32[batch_size, d0, d1, 4]"
    assert shape_of(proto, dims={"batch size": 2, "d1": 7}) == "f32[2, d0, 7, 4]"
    bounded = graph_of(proto, dims={"batch size": (1, 32), "d0": (0, None)})
    assert bounded.size_ranges == {"batch_size": (1, 32), "d0": (0, None)}
    assert shape_of(proto, shapes={"x": (3, None, "h", 4)}) == "f32[3, d0, h, 4]"


def test_dimensions_are_any_integers_and_nothing_else():
    given = {"a": np.int64(4), "b": (np.int32(1), None), "c": [2, 5], "d": 3}
    found = plain_dims(given)  # type: ignore[arg-type]
    assert found == {"a": 4, "b": (1, None), "c": (2, 5), "d": 3}
    assert type(found["a"]) is int
    for bad in ("4", 1.5, (1, 2, 3), ("a", None), None):
        with pytest.raises(UserError, match=r"dimension 'n' cannot be .*\n.*\(1, 512\)"):
            plain_dims({"n": bad})  # type: ignore[dict-item]


def test_a_size_given_for_one_input_holds_for_all():
    proto = model([NODE("Add", ["x", "z"], ["y"])], {"x": ("n", 2), "z": ("n", 2)})
    graph = graph_of(proto, shapes={"x": (5, 2)})
    assert {str(v.type) for v in graph.inputs} == {"f32[5, 2]"}
    assert graph.sizes == ()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"dims": {"seq": 3}}, "no dimension 'seq'"),
        ({"dims": {"n": -1}}, "cannot be -1"),
        ({"dims": {"n": (4, 2)}}, "cannot range"),
        ({"dims": {"n": 2**63}}, "cannot be 9223372036854775808: that is too large"),
        ({"dims": {"n": (1, 10**20)}}, "too large"),
        ({"dims": {"n": (2**63, None)}}, "too large"),
        ({"shapes": {"x": (10**20, 2)}}, "size 100000000000000000000 of axis 0 is too large"),
        ({"dims": {"n": 3}, "shapes": {"x": (4, 2)}}, "cannot be 4"),
        ({"shapes": {"q": (1,)}}, "no input 'q'"),
        ({"shapes": {"x": (1, 2, 3)}}, "rank 2"),
        ({"shapes": {"x": (1, 3)}}, "size 2 at axis 1"),
        ({"shapes": {"x": (-4, 2)}}, "negative"),
    ],
)
def test_sizes_that_do_not_fit_the_model_are_refused(options, word):
    proto = model([NODE("Relu", ["x"], ["y"])], {"x": ("n", 2)})
    with pytest.raises(UserError, match=word) as caught:
        graph_of(proto, **options)
    assert caught.value.exit_code == 2  # it is not the model's turn


def test_an_input_without_a_shape_needs_one():
    proto = model([NODE("Relu", ["x"], ["y"])], {"x": (2,)})
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="has no shape"):
        graph_of(proto)
    assert shape_of(proto, shapes={"x": (2, "n")}) == "f32[2, n]"


def test_an_input_may_be_given_once_and_for_all():
    nodes = [NODE("Reshape", ["x", "s"], ["y"])]
    proto = model(nodes, {"x": (6,), "s": (2,)}, kinds={"s": "i"})
    found = import_model(load_model(proto), values={"s": [3, 2]})
    assert found.interface.inputs == ("x",)
    assert str(found.graph.outputs[0].type) == "f32[3, 2]"


def test_floats_that_are_given_are_rounded():
    nodes = [NODE("Add", ["x", "s"], ["y"])]
    proto = model(nodes, {"x": (3,), "s": (3,)})
    given = [0.1, np.inf, np.nan]
    (constant,) = import_model(load_model(proto), values={"s": given}).graph.constants.values()
    assert constant.dtype == np.float32
    np.testing.assert_array_equal(constant, np.float32(given))


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"q": 1}, "no input 'q'"),
        ({"s": [1, 2, 3]}, "does not fit"),
        ({"s": [1.5, 2]}, "is no i64"),
        ({"s": [1, 10**30]}, "is no i64"),
        ({"s": ["a", "b"]}, "is no i64"),
        ({"s": [[1], [2, 3]]}, "is no array"),
        ({"x": [0, 0, 0, 0, 0, (1 << 24) + 1]}, "is no f32"),
        ({"x": [0, 0, 0, 0, 0, 1e40]}, "is no f32"),
        ({"x": [0, 0, 0, 0, 0, 10**400]}, "is no f32"),
    ],
)
def test_values_that_do_not_fit_an_input_are_refused(values, word):
    nodes = [NODE("Reshape", ["x", "s"], ["y"])]
    with pytest.raises(UserError, match=word) as caught:
        graph_of(model(nodes, {"x": (6,), "s": (2,)}, kinds={"s": "i"}), values=values)
    assert caught.value.exit_code == 2  # it is not the model's turn


@pytest.mark.parametrize(("opset", "dtype"), [(7, "f32"), (10, "bool"), (13, "bool")])
def test_the_mask_of_dropout_had_the_type_of_its_operand(opset, dtype):
    proto = model(
        [NODE("Dropout", ["x"], ["y", "kept"])], {"x": (3,)}, outputs=["y", "kept"], opset=opset
    )
    graph = graph_of(proto)
    assert [str(v.type) for v in graph.outputs] == ["f32[3]", f"{dtype}[3]"]
