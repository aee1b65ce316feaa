"""Attention of language models with a cache of keys and values, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import dlc
from dlc.core.errors import UnsupportedModel, UserError
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate

RNG = np.random.default_rng(5)
HEADS, SHARED, SIZE = 4, 2, 16
NAMES = ("q", "k", "v", "pk", "pv", "lengths", "total", "cos", "sin", "places", "bias", "sink")


def real(*shape) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(feeds, **attributes):
    """A model that takes all but the tables as inputs; the cache is of open length."""
    inputs = [
        helper.make_tensor_value_info(
            name,
            helper.np_dtype_to_tensor_dtype(array.dtype),
            (*array.shape[:2], "room", SIZE) if name in ("pk", "pv") else array.shape,
        )
        for name, array in feeds.items()
    ]
    constants = [numpy_helper.from_array(feeds[n], n) for n in ("cos", "sin") if n in feeds]
    known = {c.name for c in constants}
    operands = [name if name in feeds else "" for name in NAMES]
    while not operands[-1]:
        operands.pop()
    node = helper.make_node(
        "GroupQueryAttention", operands, ["y", "keys", "values"], name="attend",
        domain="com.microsoft", num_heads=HEADS, kv_num_heads=SHARED, **attributes,
    )  # fmt: skip
    graph = helper.make_graph(
        [node], "g", [i for i in inputs if i.name not in known],
        [helper.make_tensor_value_info(n, 1, None) for n in node.output], constants,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def feeds_of(batch, new, lengths, room, *, packed=False, rotary=False):
    """`lengths` keys in all for each row of the batch, `new` of them now."""
    feeds = {}
    if packed:
        feeds["q"] = real(batch, new, (HEADS + 2 * SHARED) * SIZE)
    else:
        feeds["q"] = real(batch, new, HEADS * SIZE)
        feeds |= {n: real(batch, new, SHARED * SIZE) for n in "kv"}
    feeds |= {n: real(batch, SHARED, room, SIZE) for n in ("pk", "pv")}
    feeds["lengths"] = np.array(lengths, np.int32) - 1
    feeds["total"] = np.array(max(lengths), np.int32)
    if rotary:
        angles = np.outer(np.arange(32), 0.5 ** np.arange(SIZE // 2))
        feeds |= {"cos": np.cos(angles).astype(np.float32)}
        feeds |= {"sin": np.sin(angles).astype(np.float32)}
    return feeds


def check(feeds, **attributes):
    proto = model(feeds, **attributes)
    given = {n: a for n, a in feeds.items() if n not in ("cos", "sin")}
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    want = session.run(None, given)
    graph = import_model(load_model(proto)).graph
    found = evaluate(graph, {v.name: given[v.name] for v in graph.inputs})
    real_keys = int(feeds["total"])
    for value, expected in zip(graph.outputs, want, strict=True):
        have = found[value.name]
        if value is not graph.outputs[0]:  # what lies behind the last key means nothing
            have, expected = have[:, :, :real_keys], expected[:, :, :real_keys]
        np.testing.assert_allclose(have, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize(
    ("batch", "new", "lengths", "room"), [(1, 5, [5], 0), (2, 1, [7, 7], 6), (1, 3, [8], 5)]
)
def test_it_is_onnxruntimes(batch, new, lengths, room, packed, rotary):
    feeds = feeds_of(batch, new, lengths, room, packed=packed, rotary=rotary)
    check(feeds, do_rotary=int(rotary), rotary_interleaved=0)


@pytest.mark.parametrize(
    "attributes",
    [
        {"local_window_size": 3},
        {"softcap": 2.0, "scale": 0.5},
        {"smooth_softmax": 1},
        {"do_rotary": 1, "rotary_interleaved": 1},
    ],
)
def test_attributes(attributes):
    check(feeds_of(2, 1, [7, 5], 6, rotary="do_rotary" in attributes), **attributes)
    check(feeds_of(2, 6, [6, 6], 0, rotary="do_rotary" in attributes), **attributes)


@pytest.mark.thorough
def test_a_bias_of_scores_and_a_sink():
    feeds = feeds_of(2, 1, [7, 7], 6)
    feeds["bias"] = real(2, HEADS, 1, 7)
    check(feeds)
    feeds["sink"] = real(HEADS)
    check(feeds)
    feeds = feeds_of(1, 3, [8], 5)
    feeds |= {"bias": real(1, 1, 3, 8), "sink": real(HEADS)}
    check(feeds)
    check(feeds | {"bias": real(1, HEADS, 3, 8)})


def test_a_cache_with_room_is_read_as_far_as_it_is_filled():
    feeds = feeds_of(2, 1, [7, 5], 40)
    check(feeds)
    graph = import_model(load_model(model(feeds))).graph
    scores, mixed = (n for n in graph.nodes if n.op.name == "matmul")
    assert "room" not in str(scores.output.type)
    assert "room" not in str(mixed.inputs[1].type)


def test_machine_code_takes_any_cache_and_refuses_lengths_that_lie():
    feeds = feeds_of(2, 1, [7, 5], 6, rotary=True)
    given = [a for n, a in feeds.items() if n not in ("cos", "sin")]
    proto = model(feeds, do_rotary=1)
    graph = import_model(load_model(proto)).graph
    module = dlc.compile(proto)
    for length, room in ((7, 6), (7, 9), (2, 1)):
        feeds |= feeds_of(2, 1, [length, min(length, 5)], room)
        given = [feeds[v.name] for v in graph.inputs]
        found = evaluate(graph, dict(zip((v.name for v in graph.inputs), given, strict=True)))
        for have, value in zip(module(*given), graph.outputs, strict=True):
            np.testing.assert_allclose(have, found[value.name], rtol=2e-4, atol=2e-5)
    for lengths, total in (([90, 3], 7), ([6, 4], -1)):
        feeds |= {"lengths": np.array(lengths, np.int32), "total": np.array(total, np.int32)}
        with pytest.raises(UserError, match="attend"):
            module(*[feeds[v.name] for v in graph.inputs])


@pytest.mark.parametrize(
    ("attributes", "why"),
    [({"k_quant_type": "PER_TENSOR"}, "quantized cache"), ({"do_rotary": 1}, "no table of angles")],
)
def test_what_is_not_handled_is_refused(attributes, why):
    with pytest.raises(UnsupportedModel, match=why):
        import_model(load_model(model(feeds_of(1, 2, [2], 0), **attributes)))


def held(total, room, window):
    """How many of the last keys a cache of a window has."""
    free = room - window + 1
    return total if total <= room else total - free * -(-(total - room) // free)


@pytest.mark.thorough
@pytest.mark.parametrize(("room", "window"), [(8, 8), (10, 6), (7, 1)])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_cache_of_a_window_goes_on_for_ever(room, window, batch):
    """A prompt longer or shorter than it, then tokens; of one row also some at once."""
    steps = [[13, 1, 1, 1, 1, 1], [3, *[1] * 8], *([[5, 2, 9, 1, 3]] if batch == 1 else [])]
    attributes = {"local_window_size": window, "sliding_window_cache": 1, "do_rotary": 1}
    proto = model(feeds_of(batch, 1, [1] * batch, 1, packed=True, rotary=True), **attributes)
    (queries,) = (v for v in proto.graph.input if v.name == "q")
    queries.type.tensor_type.shape.dim[1].dim_param = "n"
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    module, graph = dlc.compile(proto), import_model(load_model(proto)).graph
    for lengths in steps:
        caches, total = [real(batch, SHARED, room, SIZE) for _ in range(2)], 0
        for new in lengths:
            total += new
            given = {
                "q": real(batch, new, (HEADS + 2 * SHARED) * SIZE),
                "pk": caches[0], "pv": caches[1],
                "lengths": np.full(batch, total - 1, np.int32), "total": np.array(total, np.int32),
            }  # fmt: skip
            y, *caches = session.run(None, given)
            count = held(total, room, window)
            for found in (module.run(given), evaluate(graph, given)):
                np.testing.assert_allclose(found["y"], y, rtol=2e-4, atol=2e-5)
                for name, cache in zip(("keys", "values"), caches, strict=True):
                    have, want = found[name][:, :, :count], cache[:, :, :count]
                    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
    small = {"pk": caches[0][:, :, : window - 1], "pv": caches[1][:, :, : window - 1]}
    with pytest.raises(UserError, match=f"was built for {window} to any"):
        module.run(given | small)


def test_a_sink_beside_a_cache_of_a_window():
    feeds = feeds_of(2, 1, [11, 11], 6) | {"sink": real(HEADS)}
    feeds["total"] = np.array(11, np.int32)
    attributes = {"local_window_size": 5, "sliding_window_cache": 1}
    proto = model(feeds, **attributes)
    want = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)[0]
    found = dlc.compile(proto).run(feeds)["y"]
    np.testing.assert_allclose(found, want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("lacks", ["window", "past", "bias"])
def test_a_cache_of_a_window_that_is_not_handled_is_refused(lacks):
    feeds = feeds_of(1, 1, [5], 8, packed=True)
    if lacks == "past":
        feeds = {n: a for n, a in feeds.items() if n not in ("pk", "pv")}
    if lacks == "bias":
        feeds["bias"] = real(1, HEADS, 1, 5)
    window = {} if lacks == "window" else {"local_window_size": 4}
    proto = model(feeds, sliding_window_cache=1, **window)
    with pytest.raises(UnsupportedModel, match="a cache that holds a window, without one"):
        import_model(load_model(proto))


def test_the_width_of_a_cache_is_that_of_its_keys():
    """Whoever calls the model, or draws random inputs, need not know it."""
    feeds = feeds_of(1, 1, [7], 6)
    proto = model(feeds)
    for value in proto.graph.input:
        if value.name in ("pk", "pv"):
            value.type.tensor_type.shape.dim[3].dim_param = "width"
    graph = import_model(load_model(proto)).graph
    assert {str(v.type.shape[3]) for v in graph.inputs if v.name in ("pk", "pv")} == {str(SIZE)}
    proto = model(feeds | {"pk": real(1, SHARED + 1, 6, SIZE)})
    with pytest.raises(UnsupportedModel, match="for keys or values of"):
        import_model(load_model(proto))
