"""What is known about whole numbers, and what separate_scales makes of quantized products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.graph import integers
from dlc.graph.edit import GraphEditor
from dlc.graph.integers import bf16_exact, fits_bf16, integer_range
from tests.graph.pass_cases import read, run, same

BYTE = "x: u8[2, 3]"


def found(inputs, *lines):
    text = "\n    ".join((f"def main({inputs}):", *lines, "return y"))
    graph = read(text + "\n")
    graph = replace(graph, constants={v: np.rint(a) for v, a in graph.constants.items()})
    return integer_range(GraphEditor(graph), graph.outputs[0])


CAST = "a: f32[2, 3] = cast(x, to=f32)"


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        ((CAST, "y: f32[2, 3] = relu(a)"), (0, 255)),
        ((CAST, "c: f32[()] = const(7)", "y: f32[2, 3] = sub(a, c)"), (-7, 248)),
        ((CAST, "c: f32[()] = const(-2)", "y: f32[2, 3] = mul(c, a)"), (-510, 0)),
        ((CAST, "c: f32[()] = const(-2)", "y: f32[2, 3] = minimum(c, a)"), (-2, -2)),
        ((CAST, "y: f32[2, 3] = clip(a, min=3.0, max=20.0)"), (3, 20)),
        ((CAST, "y: f32[2, 3] = clip(a, min=2.5)"), None),
        ((CAST, "y: f32[2, 5] = pad(a, before=(0, 1), after=(0, 1), value=-1.0)"), (-1, 255)),
        ((CAST, "y: f32[2, 5] = pad(a, before=(0, 1), after=(0, 1), value=0.5)"), None),
        ((CAST, "y: f32[2, 5] = pad(a, before=(0, 1), after=(0, 1), value=-inf)"), None),
        ((CAST, "y: f32[2, 3] = clip(a, min=1.0, max=inf)"), None),
        ((CAST, "t: f32[3, 2] = transpose(a, perm=(1, 0))", "y: f32[6] = reshape(t, shape=(6,))"),
         (0, 255)),
        ((CAST, "c: f32[3, 2] = const(1, 2, 3, -4, 5, 6)", "y: f32[2, 2] = matmul(a, c)"),
         (-255 * 12, 255 * 12)),
        ((CAST, "y: f32[2, 3] = sqrt(a)"), None),
        (("y: i8[2, 3] = cast(x, to=i8)",), (-128, 127)),
        (("y: i32[5] = range(size=5, start=3, delta=2, dtype=i32)",), (3, 2**31 - 1)),
        (("y: i32[5] = range(size=5, start=3, delta=-2, dtype=i32)",), (-(2**31), 3)),
        (("y: f32[5] = range(size=5, start=3, delta=2, dtype=f32)",), None),
        (("a: i16[2, 3] = cast(x, to=i16)", "y: i16[2, 3] = mul(a, a)"), (-(2**15), 2**15 - 1)),
        ((CAST, "b: f32[2, 3] = mul(a, a)", "c: f32[2, 3] = mul(b, b)", "y: f32[2, 3] = neg(c)"),
         None),
    ],
)  # fmt: skip
def test_the_range_of_whole_numbers(lines, wanted):
    assert found(BYTE, *lines) == wanted


@pytest.mark.parametrize(("dilation", "out", "wanted"), [(1, "4, 6", (0, 255)), (2, "3, 5", None)])
def test_a_window_between_pads_may_hold_no_number(dilation, out, wanted):
    cast = "a: f32[1, 1, 3, 5] = cast(x, to=f32)"
    options = f"kernel=(2, 2), pads=(1, 1, 1, 1), dilation=({dilation}, {dilation})"
    pool = f"y: f32[1, 1, {out}] = max_pool(a, {options})"
    assert found("x: u8[1, 1, 3, 5]", cast, pool) == wanted


@pytest.mark.parametrize(
    ("shape", "line", "wanted"),
    [
        ("2, 3, 9, 9, 16", "y: f32[2, 3, 7, 7, 16] = conv_depthwise(a, w)", 9),
        ("1, 2, 4, 4, 8", "y: i32[1, 3, 2, 2, 16] = conv_bytes(x, q)", 9 * 16),
        ("5, 8", "y: i32[5, 20] = matmul_bytes(x, p, n=20)", 8),
        ("1, 4, 4, 4, 16", "y: i32[1, 3, 2, 2, 16] = conv_byte_tiles(x, t, blocks=3)", 9 * 64),
        ("5, 64", "y: i32[5, 20] = matmul_byte_tiles(x, u, n=20)", 64),
    ],
    ids=["depthwise", "conv", "matmul", "conv_tiles", "matmul_tiles"],
)
def test_sums_of_products_are_as_large_as_their_weights(shape, line, wanted):
    """`wanted` is how many products are in a sum; all weights are 3 or -3."""
    text = f"""
def main(x: u8[{shape}]):
    w: f32[3, 3, 3, 16] = const()
    q: i8[3, 2, 3, 3, 2, 16, 4] = const()
    p: i8[2, 2, 16, 4] = const()
    t: i8[4, 1, 3, 3, 1, 16, 16, 4] = const()
    u: i8[2, 1, 1, 16, 16, 4] = const()
    a: f32[{shape}] = cast(x, to=f32)
    {line}
    return y
"""
    graph = read(text)
    signs = {v: np.sign(a) * np.asarray(3, a.dtype) for v, a in graph.constants.items()}
    editor = GraphEditor(
        replace(graph, constants={v: a.astype(graph.constants[v].dtype) for v, a in signs.items()})
    )
    assert integer_range(editor, graph.outputs[0]) == (-wanted * 3 * 255, wanted * 3 * 255)


def test_too_large_sums_are_no_whole_numbers_any_more():
    square = "y: f32[2, 3] = mul(b, b)"
    assert found(BYTE, CAST, "b: f32[2, 3] = mul(a, a)", square) is None


def test_a_value_that_many_paths_lead_to_is_looked_at_once(monkeypatch):
    """Sixteen sums of a value with itself were 65,536 paths."""
    lines = [f"a{n + 1}: i64[3] = add(a{n}, a{n})" for n in range(14)]
    graph = read(
        "\n    ".join(
            ["def main(x: u8[3]):", "a0: i64[3] = cast(x, to=i64)", *lines, "return a14\n"]
        )
    )
    asked: list[str] = []
    producer = GraphEditor.producer

    def counted(self, value):
        asked.append(value.name)
        return producer(self, value)

    monkeypatch.setattr(GraphEditor, "producer", counted)
    assert integer_range(GraphEditor(graph), graph.outputs[0]) == (0, 255 * 2**14)
    assert len(asked) == len(set(asked)) == 16


def test_a_float_may_be_any_number():
    assert found("x: f32[2, 3]", "y: f32[2, 3] = relu(x)") is None


def test_what_is_exact_in_bf16():
    assert bf16_exact(np.array([256.0, -1.5, 0.0, np.inf], np.float32))
    assert not bf16_exact(np.array([257.0], np.float32))
    late = np.zeros(1000, np.float32)
    late[-1] = 1 / 3
    assert not bf16_exact(late)


@pytest.mark.parametrize(("dtype", "fits"), [("u8", True), ("i8", True), ("i16", False)])
def test_small_integers_fit(dtype, fits):
    graph = read(f"def main(x: {dtype}[3]):\n    y: f32[3] = cast(x, to=f32)\n    return y\n")
    assert fits_bf16(GraphEditor(graph), graph.outputs[0]) is fits


PER_COLUMN = """
def main(q: u8[2, 4], k: i8[{w}]):
    s: f64[()] = const()
    c: f64[{c}] = const()
    x: f64[2, 4] = cast(q, to=f64)
    xs: f64[2, 4] = mul(x, s)
    kf: f64[{w}] = cast(k, to=f64)
    w: f64[{w}] = mul(kf, c)
    {turn}
    return y
"""
MATMUL = "y: f64[2, 3] = matmul(xs, w)"
TURNED = "t: f64[4, 3] = transpose(w, perm=(1, 0))\n    y: f64[2, 3] = matmul(xs, t)"


@pytest.mark.parametrize(
    ("shapes", "separated"),
    [
        ({"w": "4, 3", "c": "3", "turn": MATMUL}, True),
        ({"w": "4, 3", "c": "1, 1", "turn": MATMUL}, True),
        ({"w": "3, 4", "c": "3, 1", "turn": TURNED}, True),
        ({"w": "4, 3", "c": "4, 1", "turn": MATMUL}, False),
        ({"w": "3, 4", "c": "4", "turn": TURNED}, False),
    ],
)
def test_scales_of_columns_leave_a_product(shapes, separated):
    graph = read(PER_COLUMN.format(**shapes))
    after = run("separate_scales", graph)
    same(graph, after)
    (product,) = [n for n in after.nodes if n.op.name == "matmul"]
    ranges = [integer_range(GraphEditor(after), v) for v in product.inputs]
    assert (None not in ranges) is separated


CONV = """
def main(q: u8[1, 2, 5, 5]):
    k: f64[3, 2, 3, 3] = const()
    s: f64[{s}] = const()
    c: f64[{c}] = const()
    x: f64[1, 2, 5, 5] = cast(q, to=f64)
    xs: f64[1, 2, 5, 5] = mul(x, s)
    w: f64[3, 2, 3, 3] = mul(k, c)
    y: f64[1, 3, 3, 3] = conv(xs, w)
    return y
"""


def are_whole(text, name):
    """Which operands of a product are whole numbers once scales are apart, by a whole kernel."""
    graph = read(text)
    kernels = {v: np.rint(a) if v.name == "k" else a for v, a in graph.constants.items()}
    graph = replace(graph, constants=kernels)
    after = run("separate_scales", graph)
    same(graph, after)
    (product,) = [n for n in after.nodes if n.op.name == name]
    return [integer_range(GraphEditor(after), v) is not None for v in product.inputs]


@pytest.mark.parametrize(
    ("s", "c", "left", "right"),
    [
        ("()", "3, 1, 1, 1", True, True),
        ("1", "()", True, True),
        ("2, 1, 1", "3, 1, 1, 1", False, True),
        ("()", "1, 2, 1, 1", False, False),
    ],
)
def test_scales_of_channels_leave_a_convolution(s, c, left, right):
    assert are_whole(CONV.format(s=s, c=c), "conv") == [left, right]


@pytest.mark.parametrize(
    ("c", "more", "right"),
    [
        ("1, 4, 1, 1", "", True),
        ("()", "", True),
        ("2, 1, 1, 1", "", False),  # another one for each summand
        ("1, 4, 1, 3", "", False),
        ("1, 4, 1, 1", ", groups=2", False),
    ],
)
def test_scales_of_transposed_kernels_leave_a_product(c, more, right):
    text = CONV.replace("[3, 2, 3, 3]", "[2, 4, 3, 3]").replace("conv(xs, w", f"conv(xs, w{more}")
    results = 8 if more else 4
    made = f"y: f64[1, {results}, 7, 7] = conv_transpose("
    text = text.replace("y: f64[1, 3, 3, 3] = conv(", made)
    assert are_whole(text.format(s="()", c=c), "conv_transpose") == [right, right]


def test_large_arrays_are_looked_at_to_their_end():
    array = np.zeros(200_001, np.float32)
    array[150_000], array[-1] = 7, -3
    assert integers._of_array(array) == (-3, 7)
    array[-1] = 0.5
    assert integers._of_array(array) is None
    array[-1] = np.inf
    assert integers._of_array(array) is None
