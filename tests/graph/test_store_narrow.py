"""store_narrow keeps activations as bf16 where that pays, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.evaluate import evaluate
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import ENGINE, read, run

NEAR = PassContext(target=Target(features=ENGINE, l2_bytes=2 << 20), precision="medium")
FAR = PassContext(target=Target(features=ENGINE, l2_bytes=1 << 10), precision="medium")
CHAIN = """
def main(x: f32[96, 64]):
    w: bf16[4, 2, 1, 16, 16, 2] = const()
    a: f32[96, 64] = matmul_planes(x, w, n=64)
    b: f32[96, 64] = relu(a)
{middle}
    y: f32[96, 64] = matmul_planes({last}, w, n=64)
    z: f32[96, 64] = relu(y)
    return z
"""
IMAGE = """
def main(x: f32[1, 4, 12, 12, 16]):
    w: bf16[4, 2, 3, 3, 1, 16, 16, 2] = const()
    d: f32[4, 3, 3, 16] = const()
    e: f32[4, 4, 1, 1, 16, 16] = const()
    a: f32[1, 4, 10, 10, 16] = conv_planes(x, w, blocks=4)
    b: f32[1, 4, 10, 10, 16] = relu(a)
{middle}
    return z
"""


def narrowed(text, context=NEAR):
    """The names of the values that are kept as bf16, and the graph."""
    found = run("store_narrow", read(text), context)
    return [n.inputs[0].name for n in found.nodes if n.op.name == "narrow"], found


def chain(*middle, last="b"):
    return CHAIN.format(middle="\n".join(f"    {line}" for line in middle), last=last)


def image(*middle):
    return IMAGE.format(middle="\n".join(f"    {line}" for line in middle))


def test_only_what_lies_between_products_is_rounded():
    names, found = narrowed(chain())
    assert names == ["b"]
    graph = read(chain())
    x = np.random.default_rng(0).standard_normal((96, 64)).astype(np.float32)
    (wanted,), (got,) = (list(evaluate(g, {"x": x}).values()) for g in (graph, found))
    np.testing.assert_allclose(got, wanted, rtol=0.02, atol=np.abs(wanted).max() * 2**-9)
    assert (got != wanted).any()


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_more_planes_stay_float32(precision):
    target = Target(features=ENGINE, l2_bytes=2 << 20)
    assert narrowed(chain(), PassContext(target=target, precision=precision))[0] == []


def test_without_the_engine_nothing_changes():
    target = Target(features=frozenset({"avx512f"}))
    graph = read(chain())
    assert run("store_narrow", graph, PassContext(target=target, precision="medium")) is graph


@pytest.mark.parametrize(
    ("middle", "last"),
    [
        (("c: f32[96, 64] = floor(b)",), "c"),
        (("c: bool[96, 64] = less(b, a)", "d: f32[96, 64] = where(c, b, a)"), "d"),
        (("v: f32[4, 64, 16] = const()", "c: f32[96, 64] = matmul_packed(b, v, n=64)"), "c"),
    ],
)
def test_a_reader_that_jumps_or_reads_again_and_again_keeps_float32(middle, last):
    assert "b" not in narrowed(chain(*middle, last=last), FAR)[0]


def test_whole_numbers_and_what_stands_before_all_products_stay():
    text = """
def main(q: u8[96, 64], x: f32[96, 64]):
    w: bf16[4, 2, 1, 16, 16, 2] = const()
    n: f32[96, 64] = cast(q, to=f32)
    s: f32[96, 64] = softmax(x, axis=1)
    t: f32[96, 64] = layer_norm(s, axis=1)
    a: f32[96, 64] = matmul_planes(n, w, n=64)
    b: f32[96, 64] = matmul_planes(s, w, n=64)
    c: f32[96, 64] = add(a, b)
    z: f32[96, 64] = add(c, t)
    return z
"""
    text = text.replace("    t: f32[96, 64] = layer_norm(s, axis=1)\n", "").replace("t)", "s)")
    assert narrowed(text, FAR)[0] == []


def test_moves_move_bf16_and_share_its_memory():
    middle = (
        "m: f32[192, 64] = empty(shape=(192, 64))",
        "i: f32[192, 64] = insert(m, b, offset=(0, 0))",
        "c: f32[96, 64] = matmul_planes(b, w, n=64)",
        "d: f32[96, 64] = relu(c)",
        "j: f32[192, 64] = insert(i, d, offset=(96, 0))",
        "v: f32[96, 64] = slice(j, starts=(48, 0), sizes=(96, 64))",
    )
    names, found = narrowed(chain(*middle, last="v"))
    assert sorted(names) == ["b", "d"]
    types = {v.name: v.type.dtype for n in found.nodes for v in n.outputs}
    assert {types[name] for name in "mijv"} == {DType.BF16}
    assert {types[name] for name in "abcdyz"} == {DType.F32}


@pytest.mark.parametrize(
    ("moved", "middle"),
    [
        ("r", (
            "r: f32[1, 4, 20, 20, 16] = resize(b, sizes=(1, 4, 20, 20, 16))",
            "y: f32[1, 4, 18, 18, 16] = conv_planes(r, w, blocks=4)",
            "z: f32[1, 4, 18, 18, 16] = relu(y)",
        )),
        ("sj", (
            "s: f32[1, 4, 6, 4, 5, 16] = split_phases(b, steps=(3, 2))",
            "j: f32[1, 4, 10, 9, 16] = join_phases(s, steps=(3, 2), sizes=(10, 9))",
            "y: f32[1, 4, 8, 7, 16] = conv_planes(j, w, blocks=4)",
            "z: f32[1, 4, 8, 7, 16] = relu(y)",
        )),
    ],
    ids=["repeated", "phases"],
)  # fmt: skip
def test_pixels_are_moved_as_bf16(moved, middle):
    names, found = narrowed(image(*middle))
    assert names == ["b"]
    types = {v.name: v.type.dtype for n in found.nodes for v in n.outputs}
    assert {types[name] for name in moved} == {DType.BF16}
    assert types["z"] == DType.F32


def test_memory_that_is_handed_out_stays():
    middle = (
        "m: f32[192, 64] = empty(shape=(192, 64))",
        "i: f32[192, 64] = insert(m, b, offset=(0, 0))",
        "j: f32[192, 64] = insert(i, b, offset=(96, 0))",
    )
    text = chain(*middle).replace("return z", "return z, j")
    assert narrowed(text, FAR)[0] == []


@pytest.mark.parametrize(("context", "wanted"), [(NEAR, ["c"]), (FAR, ["b", "c"])])
def test_a_window_reads_bf16_only_beyond_the_cache(context, wanted):
    text = image(
        "c: f32[1, 4, 8, 8, 16] = conv_depthwise(b, d)",
        "f: f32[1, 4, 6, 6, 16] = conv_planes(c, w, blocks=4)",
        "z: f32[1, 4, 6, 6, 16] = relu(f)",
    )
    assert narrowed(text, context)[0] == wanted


@pytest.mark.parametrize("rows", ["96", "n", "n // 2"])
@pytest.mark.parametrize(("columns", "wanted"), [(1, ["b"]), (64, [])])
def test_a_sum_is_rounded_only_where_that_is_worth_its_error(columns, wanted, rows):
    """A product of many columns hardly notices how its rows are read, however many there are.

    MiniLM of open sizes had five times the error of the one for known sizes.
    """
    text = f"""
def main(n: size, x: f32[96, 64]):
    w: bf16[4, 2, 1, 16, 16, 2] = const()
    v: bf16[{columns * 2}, 2, 1, 16, 16, 2] = const()
    u: bf16[4, {columns}, 1, 16, 16, 2] = const()
    a: f32[96, 64] = matmul_planes(x, w, n=64)
    b: f32[96, 64] = relu(a)
    c: f32[96, {columns * 32}] = matmul_planes(b, v, n={columns * 32})
    d: f32[96, 64] = matmul_planes(c, u, n=64)
    z: f32[96, 64] = add(b, d)
    return z
"""
    text = text.replace("f32[96", f"f32[{rows}")
    assert [n for n in narrowed(text)[0] if n == "b"] == wanted


@pytest.mark.parametrize(
    ("last", "move", "rows", "width"),
    [("b", "", 96, 64), ("r", "r: f32[48, 128] = reshape(b, shape=(48, 128))", 48, 128)],
)
@pytest.mark.parametrize(("depth", "wanted"), [(1, True), (256, False)])
def test_a_sum_that_no_product_reads_is_worth_it_beside_those_that_make_it(
    depth, wanted, last, move, rows, width
):
    """What a norm reads of a transformer, where each sum is made of many products."""
    text = f"""
def main(x: f32[96, {depth * 32}]):
    v: bf16[2, {depth}, 1, 16, 16, 2] = const()
    w: bf16[4, {width // 32}, 1, 16, 16, 2] = const()
    g: f32[{width}] = const()
    h: f32[{width}] = const()
    a: f32[96, 64] = matmul_planes(x, v, n=64)
    b: f32[96, 64] = relu(a)
    {move}
    c: f32[{rows}, {width}] = layer_norm({last}, g, h, axis=1)
    y: f32[{rows}, 64] = matmul_planes(c, w, n=64)
    return y
"""
    assert ("b" in narrowed(text, FAR)[0]) is wanted


def test_an_image_that_products_alone_read_is_rounded_as_it_is_padded():
    text = """
def main(x: f32[1, 2, 10, 10, 16]):
    w: bf16[4, 1, 3, 3, 1, 16, 16, 2] = const()
    p: f32[1, 2, 12, 12, 16] = pad(x, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0))
    y: f32[1, 4, 10, 10, 16] = conv_planes(p, w, blocks=4)
    return y
"""
    names, found = narrowed(text)
    assert names == ["x"]
    given = np.random.default_rng(0).standard_normal((1, 2, 10, 10, 16)).astype(np.float32)
    rounded = round_to(given, DType.BF16).astype(np.float32)
    (wanted,) = evaluate(read(text), {"x": rounded}).values()
    (got,) = evaluate(found, {"x": given}).values()
    np.testing.assert_array_equal(got, wanted)
