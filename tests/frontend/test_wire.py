"""Weights stay in the file: what is read is what protobuf would have read."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper, numpy_helper

from dlc.core.errors import ModelError
from dlc.frontend.onnx.load import load_model
from dlc.frontend.onnx.wire import without_weights
from tests.frontend.onnx_model import model

RNG = np.random.default_rng(5)
LARGE = RNG.standard_normal((40, 50)).astype(np.float32)
SMALL = np.float32([1, 2, 3])


def weighty() -> onnx.ModelProto:
    """A model with two large weights around a small one, and one in a typed field."""
    arrays = {"a": LARGE, "s": SMALL, "b": -LARGE}
    nodes = [helper.make_node("Sum", ["x", *arrays, "t"], ["y"])]
    proto = model(nodes, {"x": (50,)}, arrays)
    typed = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[2000])
    typed.float_data.extend(range(2000))
    proto.graph.initializer.append(typed)
    return proto


def test_large_weights_are_left_out_of_the_message():
    data = weighty().SerializeToString()
    skeleton = without_weights(data)
    assert skeleton is not None
    assert set(skeleton.weights) == {0, 2}
    assert len(skeleton.message) < len(data) - 2 * LARGE.nbytes + 100
    for number, array in ((0, LARGE), (2, -LARGE)):
        offset, length = skeleton.weights[number]
        assert data[offset : offset + length] == array.tobytes()


@pytest.mark.parametrize("form", ["path", "bytes", "message"])
def test_weights_are_the_same_however_the_model_is_given(tmp_path, form):
    proto = weighty()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    source = {"path": path, "bytes": proto.SerializeToString(), "message": proto}[form]
    found = load_model(source).graph.constants
    np.testing.assert_array_equal(found["a"], LARGE)
    np.testing.assert_array_equal(found["b"], -LARGE)
    np.testing.assert_array_equal(found["s"], SMALL)
    np.testing.assert_array_equal(found["t"], np.arange(2000))
    assert not any(array.flags.writeable for array in found.values())


def test_weights_of_a_file_are_not_copied(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(weighty().SerializeToString())
    base: Any = load_model(path).graph.constants["a"]
    while isinstance(base, np.ndarray):
        base = base.base
    assert type(base.obj if isinstance(base, memoryview) else base).__name__ == "mmap"


def test_a_large_weight_that_does_not_fit_its_shape_is_refused():
    proto = weighty()
    proto.graph.initializer[2].dims[0] = 41
    with pytest.raises(ModelError, match=r"'b': 8000 bytes .* needs 8200"):
        load_model(proto.SerializeToString())


def constants_by_protobuf(data: bytes) -> dict[str, np.ndarray]:
    proto = onnx.ModelProto.FromString(data)
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}


def test_messages_that_protobuf_would_merge_are_left_to_protobuf():
    data = weighty().SerializeToString()
    second = onnx.ModelProto(graph=onnx.GraphProto(name="more")).SerializeToString()
    assert without_weights(data + second) is None
    np.testing.assert_array_equal(load_model(data + second).graph.constants["b"], -LARGE)


def test_raw_data_given_twice_is_what_protobuf_takes():
    tensor = numpy_helper.from_array(LARGE, "a").SerializeToString()
    again = TensorProto(raw_data=(2 * LARGE).tobytes()).SerializeToString()
    proto = weighty()
    del proto.graph.initializer[:]
    field = tensor + again
    graph = proto.graph.SerializeToString() + b"\x2a" + varint(len(field)) + field
    proto.ClearField("graph")
    merged = proto.SerializeToString() + b"\x3a" + varint(len(graph)) + graph
    assert without_weights(merged) is None
    np.testing.assert_array_equal(constants_by_protobuf(merged)["a"], 2 * LARGE)


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def test_damaged_files_are_read_as_protobuf_reads_them():
    """Every flip is either refused, or gives the constants protobuf would give."""
    data = bytearray(weighty().SerializeToString())
    structure = [i for i in range(len(data)) if i < 200 or i > len(data) - 200]
    starts = [bytes(data).find(a.tobytes()) for a in (LARGE, -LARGE)]
    structure += [i for s in starts for i in range(s - 40, s)]
    compared = 0
    for _ in range(1500):
        broken = bytearray(data)
        broken[RNG.choice(structure)] = RNG.integers(256)
        skeleton = without_weights(bytes(broken))
        if skeleton is None:
            continue
        try:
            whole = onnx.ModelProto.FromString(bytes(broken))
        except DecodeError:
            with pytest.raises(DecodeError):
                onnx.ModelProto.FromString(skeleton.message)
            continue
        part = onnx.ModelProto.FromString(skeleton.message)
        for number, (offset, length) in skeleton.weights.items():
            part.graph.initializer[number].raw_data = bytes(broken[offset : offset + length])
        assert part == whole
        compared += 1
    assert compared > 300
