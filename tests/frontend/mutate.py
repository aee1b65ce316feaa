"""Random damage to models: what an importer must survive."""

from __future__ import annotations

import random

import onnx
from onnx import AttributeProto, TensorProto, numpy_helper


def mutate(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """A copy with one to three random changes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(rng.randint(1, 3)):
        rng.choice((_attribute, _attribute, _operands, _dims, _type, _constant, _opset))(copy, rng)
    return copy


_INTS = (-(1 << 63), -(1 << 31), -3, -2, -1, 0, 1, 2, 3, 7, 1 << 31, 1 << 40, (1 << 63) - 1)
_FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 0.5, 1e30, 3e-40)


def _node(model: onnx.ModelProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice(model.graph.node)


def _attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    if not node.attribute:
        return
    attribute = rng.choice(node.attribute)
    match attribute.type:
        case AttributeProto.INT:
            attribute.i = rng.choice(_INTS)
        case AttributeProto.FLOAT:
            attribute.f = rng.choice(_FLOATS)
        case AttributeProto.STRING:
            attribute.s = rng.choice((b"", b"\xff\xfe", b"constant", b"SAME_LOWER", b"NOTSET"))
        case AttributeProto.INTS:
            _change_list(attribute.ints, _INTS, rng)
        case AttributeProto.FLOATS:
            _change_list(attribute.floats, _FLOATS, rng)
        case AttributeProto.STRINGS:
            _change_list(attribute.strings, (b"", b"Tanh", b"?"), rng)
    if rng.random() < 0.1:
        attribute.type = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 14))
    if rng.random() < 0.1:
        attribute.name = rng.choice(("axis", "axes", "value", "pads", "body"))


def _change_list(values, pool, rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.2:
        del values[:]
    elif kind < 0.4:
        values.append(rng.choice(pool))
    elif values:
        values[rng.randrange(len(values))] = rng.choice(pool)


def _operands(model: onnx.ModelProto, rng: random.Random) -> None:
    node = _node(model, rng)
    names = [v.name for v in model.graph.input] + [v.name for v in model.graph.initializer] + [""]
    kind = rng.random()
    if kind < 0.3 and node.input:
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif kind < 0.5:
        node.input.append(rng.choice(names))
    elif kind < 0.7 and node.input:
        del node.input[-1]
    elif kind < 0.8:
        node.output.append("extra")
    elif kind < 0.9 and node.output:
        del node.output[-1]


def _dims(model: onnx.ModelProto, rng: random.Random) -> None:
    if not model.graph.input:
        return
    shape = rng.choice(model.graph.input).type.tensor_type.shape
    kind = rng.random()
    if kind < 0.2:
        shape.dim.add(dim_value=rng.choice((0, 1, 3, 1 << 40)))
    elif kind < 0.4 and shape.dim:
        del shape.dim[-1]
    elif shape.dim:
        dim = rng.choice(shape.dim)
        if rng.random() < 0.6:
            dim.dim_param = rng.choice(("n", "m"))
        else:
            dim.dim_value = rng.choice((-1, 0, 1, 2, 5, 1 << 50))


def _type(model: onnx.ModelProto, rng: random.Random) -> None:
    if model.graph.input:
        value = rng.choice(model.graph.input)
        value.type.tensor_type.elem_type = rng.choice((0, 1, 6, 7, 8, 9, 10, 11, 16, 17, 99))


def _constant(model: onnx.ModelProto, rng: random.Random) -> None:
    """Change an element of a constant, or its shape."""
    if not model.graph.initializer:
        return
    tensor = rng.choice(model.graph.initializer)
    try:
        array = numpy_helper.to_array(tensor).copy()
    except (ValueError, TypeError):
        return
    if array.size and array.dtype.kind in "iuf":
        pool = _FLOATS if array.dtype.kind == "f" else (-9, -1, 0, 1, 5, 100)
        value = rng.choice(pool)
        if array.dtype.kind != "u" or value >= 0:
            array.flat[rng.randrange(array.size)] = value
    if rng.random() < 0.3:
        array = array.reshape(-1) if rng.random() < 0.5 else array[None]
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    if rng.random() < 0.1:
        tensor.data_type = rng.choice((TensorProto.INT64, TensorProto.FLOAT, TensorProto.STRING))


def _opset(model: onnx.ModelProto, rng: random.Random) -> None:
    if rng.random() < 0.3:
        model.opset_import[0].version = rng.choice((1, 6, 9, 11, 13, 18, 24, 28))
