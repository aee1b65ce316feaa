"""requantize computes what it replaces, but where that lies between two bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.graph.evaluate import evaluate
from dlc.graph.ops.quotient import Quotient
from tests.graph.pass_cases import read, run

SUMS = """
def main(w: u8[7, 16]):
    v: i8[1, 4, 16, 4] = const()
    x: i32[7, 16] = matmul_bytes(w, v, n=16)
    c: f32[16] = const({factors})
    b: f32[1, 16] = const({summands})
    s: f32[()] = const({scale})
    r: f32[()] = const({inverse})
    z: f32[()] = const({zero})
    a: f32[7, 16] = cast(x, to=f32)
    p: f32[7, 16] = mul(a, c)
    q: f32[7, 16] = add(p, b)
    u: f32[7, 16] = {last}
    d: f32[7, 16] = quotient(u, s, r)
    n: f32[7, 16] = round(d)
    m: f32[7, 16] = add(n, z)
    y: {kind}[7, 16] = cast(m, to={kind})
    return y
"""
BYTES = """
def main(x: i8[7, 16], w: u8[7, 16]):
    i: i32[()] = const(-128)
    j: i32[()] = const(77)
    c: f32[()] = const(0.0371)
    e: f32[()] = const(0.0113)
    s: f32[()] = const(0.0529)
    r: f32[()] = const(18.90359115600586)
    z: f32[()] = const(-19.0)
    a: i32[7, 16] = cast(x, to=i32)
    b: i32[7, 16] = sub(a, i)
    d: f32[7, 16] = cast(b, to=f32)
    f: f32[7, 16] = mul(d, c)
    g: i32[7, 16] = cast(w, to=i32)
    h: i32[7, 16] = sub(g, j)
    k: f32[7, 16] = cast(h, to=f32)
    l: f32[7, 16] = mul(e, k)
    m: f32[7, 16] = {op}(f, l)
    n: f32[7, 16] = relu(m)
    o: f32[7, 16] = quotient(n, s, r)
    p: f32[7, 16] = round(o)
    q: f32[7, 16] = add(z, p)
    y: i8[7, 16] = cast(q, to=i8)
    return y
"""


def sums(**given):
    """The graph of a sum that becomes bytes."""
    text = text_of_sums(**given)
    return read(text.replace("return y", "return y, q") if given.get("last") == "shared" else text)


def text_of_sums(kind="i8", last="abs", zero=-3.0, scale=0.0471, factors=None, summands=None):
    """`last` is what comes before the scale of the bytes. No constant may be zero: see `read`."""
    rng = np.random.default_rng(0)
    last_steps = {"abs": "abs(q)", "relu": "relu(q)", "none": "sub(q, b)", "shared": "sub(q, b)"}
    factors = rng.uniform(1e-3, 3e-3, 16) if factors is None else factors
    summands = rng.uniform(-3, 3, 16) if summands is None else summands
    return SUMS.format(
        kind=kind,
        last=last_steps[last],
        zero=float(zero),
        scale=scale,
        inverse=float(np.float32(1 / np.float32(scale))),
        factors=", ".join(str(float(np.float32(f))) for f in factors),
        summands=", ".join(str(float(np.float32(f))) for f in summands),
    )


def names(graph):
    return [node.op.name for node in graph.nodes]


def result(graph, inputs):
    given = {value.name: array for value, array in zip(graph.inputs, inputs, strict=True)}
    (found,) = evaluate(graph, given).values()
    return found


def check(graph, inputs):
    """Both graphs, evaluated in float64, agree but at halves, which float32 constants move."""
    after = run("requantize", graph)
    assert names(after)[-1] == "to_bytes"
    assert "quotient" not in names(after)
    before, found = result(graph, inputs), result(after, inputs)
    assert np.abs(before - found).max() <= 1
    assert (before != found).mean() < 0.01
    assert len(np.unique(before)) > 30


def check_apart(graph, inputs):
    """Scales stay as they are, and so do results; what cannot overflow is not asked."""
    after = run("requantize", graph)
    operators = names(after)
    assert operators[-1] == "to_bytes"
    assert operators[:-2] == [n for n in names(graph) if n not in ("round", "quotient")][:-2]
    assert [n.op for n in after.nodes if n.op.name == "quotient"] == [Quotient(finite=True)]
    for before, found in zip(*(evaluate(g, inputs).values() for g in (graph, after)), strict=True):
        np.testing.assert_array_equal(before, found)


def pixels(*shape):
    return np.random.default_rng(1).integers(0, 256, shape)


@pytest.mark.parametrize("last", ["relu", "none"])
@pytest.mark.parametrize(("kind", "zero"), [("i8", -3), ("i8", -128), ("u8", 1), ("u8", 131)])
def test_sums_become_bytes(kind, zero, last):
    check(sums(kind=kind, last=last, zero=zero), [pixels(7, 16)])


def test_constants_may_be_zero():
    factors = [0.002] * 15 + [0.0]
    check(sums(last="none", factors=factors, summands=[1.0] * 15 + [0.0]), [pixels(7, 16)])


@pytest.mark.parametrize("given", [{"summands": [1e5] * 16}, {"last": "shared"}], ids=str)
def test_scales_stay_apart(given):
    """Where large terms may cancel, one rounding of each is too much; a sum that others read is
    in memory as it is.
    """
    check_apart(sums(**({"last": "none"} | given)), {"w": pixels(7, 16)})


DEPTHWISE = """
def main(x: u8[1, 1, 9, 9, 16]):
    w: f32[1, 3, 3, 16] = const({weights})
    c: f32[1, 1, 1, 1, 16] = const({factors})
    t: bool[1, 1, 1, 1, 16] = const({used})
    f: f32[()] = const(1.5)
    s: f32[()] = const(2.25)
    z: f32[()] = const(-19.0)
    a: f32[1, 1, 9, 9, 16] = cast(x, to=f32)
    k: f32[1, 1, 7, 7, 16] = conv_depthwise(a, w)
    p: f32[1, 1, 7, 7, 16] = mul(k, c)
    q: f32[1, 1, 7, 7, 16] = where(t, p, f)
    d: f32[1, 1, 7, 7, 16] = mul(q, s)
    n: f32[1, 1, 7, 7, 16] = round(d)
    m: f32[1, 1, 7, 7, 16] = add(n, z)
    y: i8[1, 1, 7, 7, 16] = cast(m, to=i8)
    return y
"""


def depthwise(weights):
    factors = np.random.default_rng(1).uniform(1e-4, 1e-3, 16).astype(np.float32)
    used = ", ".join(["true"] * 13 + ["false"] * 3)
    listed = ", ".join(str(float(w)) for w in weights), ", ".join(str(float(f)) for f in factors)
    return read(DEPTHWISE.format(weights=listed[0], factors=listed[1], used=used))


def test_whole_numbers_in_floats_and_channels_that_fill_a_block():
    weights = np.random.default_rng(2).integers(-127, 128, 144)
    check(depthwise(weights), [pixels(1, 1, 9, 9, 16)])
    # Those of one channel alone stay below 2**24.
    assert names(run("requantize", depthwise([4096.0] * 144)))[-1] == "to_bytes"


@pytest.mark.parametrize("last", [0.5, 2.0**17])
def test_sums_that_may_not_be_whole_are_left_alone(last):
    graph = depthwise([*np.ones(143), last])
    assert run("requantize", graph) is graph


@pytest.mark.parametrize("op", ["add", "sub"])
@pytest.mark.parametrize("given", ["y", "y, f"])
def test_a_sum_of_two_quantized_tensors_is_that_of_the_model(op, given):
    graph = read(BYTES.format(op=op).replace("return y", f"return {given}"))
    check_apart(graph, {"x": pixels(7, 16) - 128, "w": pixels(7, 16)})


def test_bytes_are_the_nearest_of_what_is_out_of_range():
    graph = sums(last="none", factors=[3.0] * 16)
    w = np.full((7, 16), 255)
    before, found = result(graph, [w]), result(run("requantize", graph), [w])
    np.testing.assert_array_equal(before, found)
    assert set(np.unique(found)) == {-128, 127}


@pytest.mark.parametrize(
    "given",
    [
        {"last": "abs"},  # not known to be a sum of whole numbers
        {"zero": 0.5},
        {"zero": 2.0**30},
        {"factors": [2e4] * 16},  # more than an i32 holds
        {"factors": [1000.0] * 16, "summands": [4e7] * 16},  # nor does it hold both together
        {"factors": [np.inf] * 16},
        {"factors": [np.nan] * 16},
        {"factors": [1e-40] * 16},
        {"factors": [1e-30] * 16, "scale": 1e30},
        {"summands": [np.nan] * 16},
        {"summands": [3e38] * 16},
        {"last": "relu", "scale": -0.0471},
    ],
    ids=str,
)
def test_what_may_be_no_byte_is_left_alone(given):
    graph = sums(**({"last": "none"} | given))
    assert run("requantize", graph) is graph


def test_products_with_nothing_by_an_infinite_scale_are_left_alone():
    """Zero times infinity is no limit."""
    graph = sums(last="none", factors=[3e38] * 16, scale=1e-3)
    zeros = {v: a * (a.dtype.kind == "f") for v, a in graph.constants.items()}
    graph = replace(
        graph, constants={v: a.astype(graph.constants[v].dtype) for v, a in zeros.items()}
    )
    assert run("requantize", graph) is graph


@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_other_floats_are_left_alone(dtype):
    text = BYTES.format(op="add").replace("quotient(n, s, r)", "div(n, s)").replace("f32", dtype)
    graph = read(text)
    assert run("requantize", graph) is graph


def test_numbers_that_are_not_whole_are_left_alone():
    text = BYTES.format(op="add").replace("x: i8", "x: f32").replace("cast(b, to=f32)", "abs(x)")
    graph = read(text)
    assert run("requantize", graph) is graph


def test_long_sums_are_left_alone():
    """Each term is followed to its bytes, again and again where several share them."""
    last, lines = "f", []
    for n in range(4):
        lines.append(f"    f{n}: f32[7, 16] = add({last}, {last})")
        last = f"f{n}"
    text = BYTES.replace("    m: f32", "\n".join([*lines, "    m: f32"]))
    graph = read(text.replace("{op}(f, l)", f"add({last}, l)"))
    assert run("requantize", graph) is graph
