"""Sizes with names of their own, which a run finds equal, or 1, or not to fit."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper, parser

import dlc
from dlc.core.errors import UserError
from dlc.core.target import MATRIX_ENGINE
from dlc.core.target_parse import parse_target
from dlc.frontend.onnx import load_model
from dlc.frontend.onnx.variants import import_variants
from dlc.graph.ops.control import If
from dlc.graph.ops.conv import exact_conv


def small(*shape: int) -> np.ndarray:
    """Small integers, as floats: their sums are exact."""
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float32).reshape(shape) * 7 + 3) % 5 - 2


def test_a_recurrent_state_may_name_its_batch_anew():
    weights = {"w": small(1, 16, 3) / 8, "r": small(1, 16, 4)[:, ::-1] / 8}
    node = helper.make_node("LSTM", ["x", "w", "r", "", "", "h", "c"], ["y", "yh", "yc"],
                            hidden_size=4)  # fmt: skip
    shapes = {"x": ["s", "b", 3], "h": [1, "p", 4], "c": [1, "q", "z"]}
    fixed = {"x": ["s", "b", 3], "h": [1, "b", 4], "c": [1, "b", 4]}
    modules = [
        dlc.compile(
            helper.make_model(
                helper.make_graph(
                    [node], "g",
                    [helper.make_tensor_value_info(n, 1, dims) for n, dims in given.items()],
                    [helper.make_tensor_value_info(n, 1, None) for n in ("y", "yh", "yc")],
                    [numpy_helper.from_array(w, n) for n, w in weights.items()],
                ),
                opset_imports=[helper.make_opsetid("", 17)],
            )
        )
        for given in (shapes, fixed)
    ]  # fmt: skip
    for steps, batch in ((1, 1), (2, 3), (0, 2), (3, 0)):
        feeds = (small(steps, batch, 3), small(1, batch, 4), small(1, batch, 4) / 2)
        for found, want in zip(*(module(*feeds) for module in modules), strict=True):
            np.testing.assert_array_equal(found, want)
    for state in ((1, 2, 4), (1, 1, 4)):
        with pytest.raises(UserError, match=r"the sizes do not fit: .* must hold"):
            modules[0](small(2, 3, 3), small(*state), small(1, 3, 4))


def test_the_state_of_a_scan_may_name_its_sizes_anew():
    text = """<ir_version: 8, opset_import: ["": 17]>
    main (float[p,4] s, float[n,q,4] x) => (float[p,4] y) {
        y, rows = Scan<num_scan_inputs=1, body = b (float[p,4] a, float[q,4] e)
            => (float[q,4] next, float[q,4] row) { next = Sub(e, a) row = Neg(a) }>(s, x)
    }"""
    module = dlc.compile(parser.parse_model(text))
    for rows in (3, 1, 0):
        state, x = small(rows, 4), small(2, rows, 4)
        np.testing.assert_array_equal(module(state, x), x[1] - (x[0] - state))
    with pytest.raises(UserError, match="must hold"):
        module(small(2, 4), small(2, 3, 4))


EXPAND = """<ir_version: 8, opset_import: ["": 17]>
main (float[a,4] x, float[b,4] like) => (float[c,4] y, float[c,4] z) {
    s = Shape(like) y = Expand(x, s) z = Neg(y)
}"""


@pytest.mark.parametrize(
    ("rows", "wanted"), [(3, 3), (1, 3), (3, 1), (1, 1), (0, 1), (1, 0), (0, 0)]
)
def test_an_expansion_finds_out_what_is_one(rows, wanted, expand):
    x = small(rows, 4)
    y, z = expand(x, small(wanted, 4))
    np.testing.assert_array_equal(y, np.broadcast_to(x, np.broadcast_shapes(x.shape, (wanted, 4))))
    np.testing.assert_array_equal(z, -y)


@pytest.mark.parametrize(("rows", "wanted"), [(2, 3), (3, 2), (3, 0), (0, 2)])
def test_an_expansion_refuses_what_does_not_fit(rows, wanted, expand):
    with pytest.raises(UserError, match=r"node 'y' \(Expand\): the sizes do not fit"):
        expand(small(rows, 4), small(wanted, 4))


@pytest.fixture(scope="module")
def expand() -> dlc.Module:
    return dlc.compile(parser.parse_model(EXPAND))


def test_an_expansion_to_a_known_size_takes_one_row_or_all():
    module = dlc.compile(parser.parse_model(EXPAND.replace("[b,4] like", "[5,4] like")))
    for rows in (1, 5):
        np.testing.assert_array_equal(
            module(small(rows, 4), small(5, 4))[0], np.broadcast_to(small(rows, 4), (5, 4))
        )
    with pytest.raises(UserError, match="must hold"):
        module(small(3, 4), small(5, 4))


LAST = """<ir_version: 8, opset_import: ["": 17]>
main (float[a,h,4] x, float[b,h,1] y) => (float[a,h,4] s, float[c,h,4] t)
    <int64[1] from = {-1}, int64[1] far = {9223372036854775807}, int64[1] axis = {1}> {
    last = Slice(x, from, far, axis)
    s = Div(x, last)
    t = Where(seen, last, y)
}"""


@pytest.mark.parametrize("between", ["seen = Greater(x, y)", "seen = Equal(last, y)"])
def test_what_has_one_row_at_most_is_repeated_to_all(between):
    text = LAST.replace("t = Where", f"{between}\n    t = Where")
    module = dlc.compile(parser.parse_model(text))
    for a, b, h in ((2, 2, 3), (1, 3, 5), (3, 1, 1), (2, 2, 0)):
        x, y = small(a, h, 4) + 3, small(b, h, 1) + 3
        s, t = module(x, y)
        np.testing.assert_array_equal(s, x / x[:, -1:])
        seen = x > y if "Greater" in between else x[:, -1:] == y
        np.testing.assert_array_equal(t, np.where(seen, x[:, -1:], y))


BROADCAST = """<ir_version: 8, opset_import: ["": 17]>
main (float[a,4] x, float[b,4] y, float[c,1] z) => (float[m,4] s, float[n,4] t, float[o] u) {
    s = Add(x, y)
    p = Mul(s, x)
    q = Relu(p)
    t = Sub(q, z)
    axes = Constant<value_ints = [1]>()
    u = ReduceSum<keepdims = 0>(t, axes)
}"""
MATRICES = """<ir_version: 8, opset_import: ["": 17]>
main (float[a,2,3] x, float[b,3,2] y, float[b,1,c] z) => (float[m,2,2] s, float[n,2,2] t) {
    s = MatMul(x, y)
    t = Max(s, z)
}"""
FIXED = """<ir_version: 8, opset_import: ["": 17]>
main (float[a,3] x, bool[b,1] y) => (float[m,3] s, float[5,3] t) {
    axis = Constant<value_ints = [5, 1]>()
    zero = Constant<value_float = 0.0>()
    five = Expand(zero, axis)
    s = Where(y, x, zero)
    t = Add(x, five)
}"""


@pytest.fixture(scope="module")
def broadcasts():
    return {text: dlc.compile(parser.parse_model(text)) for text in (BROADCAST, MATRICES, FIXED)}


@pytest.mark.parametrize("sizes", list(itertools.product((0, 1, 3), repeat=3)))
def test_a_run_decides_what_broadcasts(sizes, broadcasts):
    a, b, c = sizes
    x, y, z = small(a, 4), small(b, 4) + 1, small(c, 1) - 1
    try:
        s = x + y
        t = np.maximum(s * x, 0) - z
    except ValueError:
        with pytest.raises(UserError, match="must hold"):
            broadcasts[BROADCAST](x, y, z)
        return
    for found, want in zip(broadcasts[BROADCAST](x, y, z), (s, t, t.sum(1)), strict=True):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("sizes", list(itertools.product((0, 1, 3), (0, 1, 3), (1, 2))))
def test_a_run_decides_what_stacks_broadcast(sizes, broadcasts):
    a, b, c = sizes
    x, y, z = small(a, 2, 3), small(b, 3, 2), small(b, 1, c)
    try:
        s = x @ y
        t = np.maximum(s, z)
    except ValueError:
        with pytest.raises(UserError, match="must hold"):
            broadcasts[MATRICES](x, y, z)
        return
    for found, want in zip(broadcasts[MATRICES](x, y, z), (s, t), strict=True):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("sizes", list(itertools.product((1, 5, 2), (1, 5))))
def test_a_run_decides_beside_a_fixed_size(sizes, broadcasts):
    a, b = sizes
    x, y = small(a, 3), small(b, 1) > 0
    if a == 2:
        with pytest.raises(UserError, match="must hold"):
            broadcasts[FIXED](x, y)
        return
    s, t = broadcasts[FIXED](x, y)
    np.testing.assert_array_equal(s, np.where(y, x, 0))
    np.testing.assert_array_equal(t, x + np.zeros((5, 1)))


def test_texts_broadcast_too():
    text = """<ir_version: 8, opset_import: ["": 20]>
    main (string[a] x, string[b] y) => (string[c] z) { z = StringConcat(x, y) }"""
    module = dlc.compile(parser.parse_model(text))
    one, three = np.array(["p"], object), np.array(["q", "r", "s"], object)
    for x, y in ((one, three), (three, one), (three, three), (one, one)):
        np.testing.assert_array_equal(module(x, y), x + y)


def test_known_sizes_cost_nothing():
    """One graph alone, and no expansion, where names say what is equal or 1."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    main (float[a,4] x, float[a,1] y, float[1,4] z) => (float[a,4] s) {
        p = Add(x, y)
        s = Mul(p, z)
    }"""
    graph = import_variants(load_model(parser.parse_model(text)), []).graph
    assert [node.op.name for node in graph.nodes] == ["add", "mul"]
    ones = [{"a": 1, "b": 1, "c": 1}]
    graph = import_variants(load_model(parser.parse_model(BROADCAST)), ones).graph
    (choice,) = (node.op for node in graph.nodes if isinstance(node.op, If))
    assert "expand" not in [node.op.name for node in choice.then.nodes]


KERNEL = " ".join(f"{v:.0f}," for v in small(4, 3, 3, 3).flat)[:-1]
SAME = {
    "conv": f"Conv<strides=[2,3], auto_pad=MODE>(x, f) <float[4,3,3,3] f = {{{KERNEL}}}>",
    "max": "MaxPool<kernel_shape=[3,4], strides=[2,3], auto_pad=MODE>(x)",
    "mean": "AveragePool<kernel_shape=[4,2], strides=[2,2], auto_pad=MODE>(x)",
    "mean of all": "AveragePool<kernel_shape=[3,3], strides=[3,2], auto_pad=MODE,"
    " count_include_pad=1>(x)",
    "norm": "LpPool<kernel_shape=[2,2], strides=[2,2], auto_pad=MODE, p=1>(x)",
    "few": "MaxPool<kernel_shape=[1,2], strides=[2,3], auto_pad=MODE>(x)",
}


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("name", SAME)
def test_the_border_of_an_open_image_is_that_of_each_size(name, mode):
    call, _, constants = SAME[name].replace("MODE", f'"{mode}"').partition(" <")
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    main (float[2,3,h,w] x) => (float[a,b,c,d] y) {f"<{constants}" if constants else ""} {{
        z = {call}
        y = Neg(z)
    }}"""
    model = parser.parse_model(text)
    module = dlc.compile(model)
    for high, wide in ((7, 8), (8, 7), (13, 5), (1, 2), (6, 12)):
        image = small(2, 3, high, wide)
        want = dlc.compile(model, shapes={"x": image.shape})(image)
        np.testing.assert_array_equal(module(image), want)


@pytest.mark.parametrize("k", [0, 2, -1])
def test_an_open_matrix_has_a_diagonal(k):
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    main (float[n,m] x) => (float[p,q] y) {{ y = EyeLike<k={k}>(x) }}"""
    module = dlc.compile(parser.parse_model(text))
    for shape in ((3, 4), (5, 2), (1, 1), (0, 3)):
        want = np.eye(*shape, k, dtype=np.float32)
        np.testing.assert_array_equal(module(np.zeros(shape, np.float32)), want)


def test_an_open_axis_splits_into_equal_parts_or_is_refused():
    body = "main (float[n,4] x) => (float[a,4] p, float[b,4] q, float[c,4] r)"
    old, new = (
        dlc.compile(
            parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {body} {call}')
        )
        for opset, call in (
            (13, "{ p, q, r = Split<axis=0>(x) }"),
            (18, "{ p, q, r = Split<axis=0, num_outputs=3>(x) }"),
        )
    )
    for rows in (0, 3, 9):
        x = small(rows, 4)
        for module in (old, new):
            for part, want in zip(module(x), np.split(x, 3), strict=True):
                np.testing.assert_array_equal(part, want)
    x = small(7, 4)
    with pytest.raises(UserError, match="sizes do not fit"):
        old(x)
    assert [len(part) for part in new(x)] == [3, 3, 1]


RANGE = """<ir_version: 8, opset_import: ["": 17]>
main (float[n,m] x) => (int64[p] down, int64[q] up, int64[r] own, int64[s] none)
    <int64 first = {0}, int64 second = {1}, int64 back = {-1}, int64 three = {3}> {
    sizes = Shape(x)
    high = Gather(sizes, first) by = Gather(sizes, second) low = Neg(by)
    down = Range(high, low, back)
    up = Range(low, high, three)
    own = Range(low, high, by)
    none = Range(high, low, three)
}"""


def test_ranges_between_sizes_go_by_any_step():
    module = dlc.compile(parser.parse_model(RANGE))
    for n, m in ((3, 4), (0, 1), (1, 7), (5, 2)):
        steps = (np.arange(n, -m, -1), np.arange(-m, n, 3), np.arange(-m, n, m), np.zeros(0))
        for found, want in zip(module(np.zeros((n, m), np.float32)), steps, strict=True):
            np.testing.assert_array_equal(found, want)
    with pytest.raises(UserError, match=r"node 'own' \(Range\)"):
        module(np.zeros((3, 0), np.float32))
    with pytest.raises(UserError, match="delta is 0"):
        dlc.compile(parser.parse_model(RANGE.replace("{-1}", "{0}")))


def test_a_table_of_many_sizes_is_no_deep_formula():
    text = """<ir_version: 8, opset_import: ["": 17]>
    main (float[n] x) => (int64[40,50] y)
        <int64[40,1] rows = {ROWS}, int64[2] shape = {40, 50}> {
        size = Shape(x) sums = Add(rows, size) y = Expand(sums, shape)
    }""".replace("ROWS", ", ".join(str(7 * i % 40) for i in range(40)))
    module = dlc.compile(parser.parse_model(text))
    for n in (0, 3):
        rows = np.array([[7 * i % 40 + n] for i in range(40)])
        np.testing.assert_array_equal(module(np.zeros(n, np.float32)), np.tile(rows, (1, 50)))


def test_direct_sums_compute_small_images_and_transforms_large_ones():
    w, shape = small(256, 256, 3, 3), [1, 256, "h", "v"]
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
            helper.make_node("Relu", ["c"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, shape)],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    native = parse_target("native")
    module = dlc.compile(model, replace(native, features=native.features - MATRIX_ENGINE))
    chosen = set()
    for sizes in ((1, 1), (3, 5), (2, 60), (23, 18)):
        x = small(1, 256, *sizes)
        (found,) = module.run({"x": x}).values()
        wanted = np.maximum(exact_conv(x.astype(np.float64), w, (1, 1), (1,) * 4, (1, 1), 1), 0)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=0.05)
        steps = module.profile({"x": x}, rounds=1).steps
        chosen |= {step.kernel for step in steps if step.kernel.startswith("conv_")}
    assert chosen == {"conv_blocked_relu", "conv_winograd_relu"}


def test_a_run_finds_sizes_whose_formula_is_too_long_to_follow():
    """What detectors make when they join the best boxes of each of many classes."""
    limits = [(3 * i + 1) % 101 for i in range(199)]
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Less", ["n", "signs"], ["any0"]),
        helper.make_node("Mul", ["n", "signs"], ["sum0"]),
    ]
    for i in range(len(limits)):
        nodes.append(helper.make_node("Min", ["n", f"limit{i}"], [f"best{i}"]))
        nodes.append(helper.make_node("Mul", [f"best{i}", "signs"], [f"signed{i}"]))
        nodes.append(helper.make_node("Add", [f"sum{i}", f"signed{i}"], [f"sum{i + 1}"]))
        nodes.append(helper.make_node("Equal", ["n", f"limit{i}"], [f"is{i}"]))
        nodes.append(helper.make_node("Or", [f"any{i}", f"is{i}"], [f"any{i + 1}"]))
    nodes += [
        helper.make_node("Gather", ["sum199", "zero"], ["size"]),
        helper.make_node("ConstantOfShape", ["size"], ["y"]),
        helper.make_node("Identity", ["sum199"], ["sums"]),
        helper.make_node("Identity", ["any199"], ["found"]),
    ]
    constants = {f"limit{i}": [limit] for i, limit in enumerate(limits)}
    constants |= {"signs": [1, -1], "zero": [0]}
    kinds = {"y": 1, "sums": 7, "found": 9}
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ["n"])],
        [helper.make_tensor_value_info(name, kind, [None]) for name, kind in kinds.items()],
        [numpy_helper.from_array(np.array(v), n) for n, v in constants.items()],
    )  # fmt: skip
    module = dlc.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    for n in (0, 1, 30, 100, 101):
        y, sums, found = module(small(n))
        total = n + sum(min(n, limit) for limit in limits)
        assert (y.shape, sums.tolist()) == ((total,), [total, -total])
        assert found.tolist() == [n < 1 or n in limits, n in limits]
