"""use_byte_products keeps results to the bit, and takes only what are products of bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.target import Gpu, Target
from dlc.graph.evaluate import evaluate
from dlc.graph.integers import is_kept_whole
from dlc.graph.ops.shape import Pad
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import AVX512, CONTEXT, ENGINE, VNNI, read, run

BYTES = PassContext(target=Target(features=VNNI))
BOTH = pytest.mark.parametrize("context", [BYTES, CONTEXT], ids=["four", "two"])
CONV = """
def main(q: {kind}[1, 3, 14, 13, 16]):
    w: f32[5, 3, 3, 3, 16, 16] = const()
    z: i32[1, 1, 1, 1, 1] = const({zero})
    p: {kind}[1, 3, 16, 15, 16] = pad(q, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0), {fill})
    a: i32[1, 3, 16, 15, 16] = cast(p, to=i32)
    b: i32[1, 3, 16, 15, 16] = sub(a, z)
    x: f32[1, 3, 16, 15, 16] = cast(b, to=f32)
    y: f32[1, 5, 7, 13, 16] = conv_blocked(x, w, stride=(2, 1))
    return y
"""
GROUPS = (
    CONV.replace("w: f32[5, 3", "w: f32[6, 1")
    .replace("y: f32[1, 5", "y: f32[1, 6")
    .replace("(2, 1)", "(2, 1), groups=3")
)
SPARSE = GROUPS.replace("groups=3", "groups=3, sparse=True")
UNPADDED = """
def main(q: {kind}[1, 3, 14, 13, 16]):
    w: f32[5, 3, 3, 3, 16, 16] = const()
    v: f32[2, 3, 1, 1, 16, 16] = const()
    z: i32[1, 1, 1, 1, 1] = const({zero})
    a: i32[1, 3, 14, 13, 16] = cast(q, to=i32)
    b: i32[1, 3, 14, 13, 16] = sub(a, z)
    x: f32[1, 3, 14, 13, 16] = cast(b, to=f32)
    p: f32[1, 3, 16, 15, 16] = pad(x, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0))
    y: f32[1, 5, 14, 13, 16] = conv_blocked(p, w)
    s: f32[1, 3, 14, 13, 16] = slice(p, starts=(0, 0, 1, 1, 0), sizes=(1, 3, 14, 13, 16))
    u: f32[1, 2, 7, 7, 16] = conv_blocked(s, v, stride=(2, 2))
    return y, u
"""
PLANAR = """
def main(q: {kind}[2, {channels}, 14, 13]):
    w: f32[3, {channels}, 3, 3, 16] = const()
    z: i32[()] = const({zero})
    a: i32[2, {channels}, 14, 13] = cast(q, to=i32)
    b: i32[2, {channels}, 14, 13] = sub(a, z)
    x: f32[2, {channels}, 14, 13] = cast(b, to=f32)
    y: f32[2, 3, 6, 11, 16] = conv_planar(x, w, stride=(2, 1))
    return y
"""
NARROWED = """
def main(q: {kind}[7, 48]):
    w: f32[3, 48, 16] = const()
    z: i32[()] = const({zero})
    a: i32[7, 48] = cast(q, to=i32)
    b: i32[7, 48] = sub(a, z)
    c: i8[7, 48] = cast(b, to=i8)
    x: f32[7, 48] = cast(c, to=f32)
    y: f32[7, 40] = matmul_packed(x, w, n=40)
    return y
"""
PARTS = """
def main(q: {kind}[5, 64], z: {kind}[()]):
    w: f32[2, 32, 16] = const()
    v: f32[2, 32, 16] = const()
    zero: i32[()] = cast(z, to=i32)
    a: i32[5, 64] = cast(q, to=i32)
    b: i32[5, 64] = sub(a, zero)
    c: i32[5, 32] = slice(b, starts=(0, 0), sizes=(5, 32))
    d: i32[5, 32] = slice(b, starts=(0, 32), sizes=(5, 32))
    e: f32[5, 32] = cast(c, to=f32)
    f: f32[5, 32] = cast(d, to=f32)
    g: f32[5, 32] = matmul_packed(e, w, n=32)
    h: f32[5, 32] = matmul_packed(f, v, n=32)
    y: f32[5, 32] = add(g, h)
    return y
"""
MATMUL = """
def main(n: size, q: {kind}[n, 7, 48]):
    w: f32[3, 48, 16] = const()
    z: i32[()] = const({zero})
    a: i32[n, 7, 48] = cast(q, to=i32)
    b: i32[n, 7, 48] = sub(a, z)
    x: f32[n, 7, 48] = cast(b, to=f32)
    y: f32[n, 7, 40] = matmul_packed(x, w, n=40)
    v: f32[n, 7, 40] = matmul_packed(x, w, n=40)
    s: f32[n, 7, 40] = add(y, v)
    return s
"""
DYNAMIC = """
def main(q: {kind}[2, 7, 48], z: {kind}[1]):
    w: f32[3, 48, 16] = const()
    zero: i32[1] = cast(z, to=i32)
    a: i32[2, 7, 48] = cast(q, to=i32)
    b: i32[2, 7, 48] = sub(a, zero)
    x: f32[2, 7, 48] = cast(b, to=f32)
    y: f32[2, 7, 40] = matmul_packed(x, w, n=40)
    return y
"""
PLAIN = """
def main(q: u8[1, 256]):
    w: f32[16, 256, 16] = const()
    x: f32[1, 256] = cast(q, to=f32)
    y: f32[1, 256] = matmul_packed(x, w, n=256)
    return y
"""


def graph_of(text, low=-128, high=127, seed=3):
    """A graph whose weights are whole numbers of a range."""
    graph, rng = read(text), np.random.default_rng(seed)

    def whole(array):
        return rng.integers(low, high + 1, array.shape).astype("f4") if array.ndim > 2 else array

    constants = {v: whole(a) if v.type.dtype.is_float else a for v, a in graph.constants.items()}
    return replace(graph, constants=constants)


def given(text, kind, zero):
    """A graph of bytes less a number, which is what they are padded by."""
    return text.format(kind=kind, zero=zero, fill=f"value={zero}")


def operators(graph, context=BYTES):
    return [node.op.name for node in run("use_byte_products", graph, context).nodes]


@pytest.mark.parametrize("channels", [2, 3, 4, 5, 12])
@pytest.mark.parametrize(("kind", "zero"), [("u8", 114), ("i8", -7)])
@BOTH
def test_few_planar_channels_become_a_block(channels, kind, zero, context):
    graph = graph_of(PLANAR.format(kind=kind, zero=zero, channels=channels))
    found = optimized(graph, context)
    assert [n.op.name for n in found.nodes][-4:] == ["pack_channels", "conv_bytes", "sub", "cast"]
    feeds = random_bytes(graph)
    np.testing.assert_array_equal(evaluate(found, feeds)["y"], evaluate(graph, feeds)["y"])


def optimized(graph, context=BYTES):
    """With the pass that moves pads to bytes before it."""
    return run("use_byte_products", run("pad_bytes", graph, context), context)


def random_bytes(graph, seed=0):
    """Inputs of all values that bytes have, the ends of their range among them."""
    rng = np.random.default_rng(seed)
    found = {}
    for value in graph.inputs:
        shape = [2 if str(n) == "n" else int(str(n)) for n in value.type.shape]
        limits = np.iinfo({"u8": "u1", "i8": "i1", "i32": "i4"}[str(value.type.dtype)])
        found[value.name] = rng.integers(max(limits.min, -128), min(limits.max, 255) + 1, shape)
        found[value.name] = found[value.name].astype(limits.dtype)
    return found


@pytest.mark.parametrize(("kind", "zero"), [("u8", 3), ("u8", 0), ("i8", -7), ("i8", 0)])
@pytest.mark.parametrize("text", [CONV, GROUPS, SPARSE, UNPADDED, MATMUL, NARROWED, PARTS])
@BOTH
def test_every_sum_is_the_same(text, kind, zero, context):
    graph = graph_of(given(text, kind, zero))
    found = optimized(graph, context)
    names = [node.op.name for node in found.nodes]
    assert {"conv_bytes", "matmul_bytes"} & set(names)
    assert not {"conv_blocked", "matmul_packed"} & set(names)
    feeds = random_bytes(graph)
    wanted, got = (evaluate(g, feeds, {"n": 2}) for g in (graph, found))
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize("depth", [1, 45, 46, 47])
@pytest.mark.parametrize(("kind", "zero"), [("u8", 3), ("i8", -7), ("i8", 300)])
@BOTH
def test_rows_of_any_depth_are_filled_with_bytes_that_do_not_count(depth, kind, zero, context):
    graph = graph_of(MATMUL.format(kind=kind, zero=zero).replace("48", str(depth)))
    found = optimized(graph, context)
    names = [node.op.name for node in found.nodes]
    assert (names.count("matmul_bytes"), names.count("matmul_packed")) == (2, 0)
    assert names.count("pad") == 1 if depth % context.byte_products else "pad" not in names
    feeds = random_bytes(graph)
    wanted, got = (evaluate(g, feeds, {"n": 2}) for g in (graph, found))
    np.testing.assert_array_equal(got["s"], wanted["s"])


def test_readers_of_one_image_share_the_bytes_and_their_pad():
    found = optimized(graph_of(given(UNPADDED, "i8", -128)))
    names = [node.op.name for node in found.nodes]
    assert [names.count(n) for n in ("pad", "slice", "conv_bytes")] == [1, 1, 2]
    assert [n.output.type.dtype.value for n in found.nodes if n.op.name == "pad"] == ["u8"]


@pytest.mark.parametrize("shape", ["1", "()", "1, 1"])
@pytest.mark.parametrize("kind", ["u8", "i8"])
@BOTH
def test_a_zero_may_be_computed(kind, shape, context):
    text = DYNAMIC.replace("z: {kind}[1]", f"z: {{kind}}[{shape}]")
    graph = graph_of(text.replace("zero: i32[1]", f"zero: i32[{shape}]").format(kind=kind))
    found = run("use_byte_products", graph, context)
    assert [n.op.name for n in found.nodes].count("matmul_bytes") == 1
    limits = np.iinfo("u1" if kind == "u8" else "i1")
    rng = np.random.default_rng(0)
    for zero in (limits.min, 0, limits.max):
        q = rng.integers(limits.min, limits.max + 1, (2, 7, 48)).astype(limits.dtype)
        feeds = {
            "q": q,
            "z": np.full(eval(f"({shape},)") if shape != "()" else (), zero, limits.dtype),
        }
        np.testing.assert_array_equal(evaluate(found, feeds)["y"], evaluate(graph, feeds)["y"])


def test_zeros_of_rows_stay():
    text = DYNAMIC.format(kind="u8").replace("z: u8[1]", "z: u8[7, 1]")
    assert "matmul_bytes" not in operators(
        graph_of(text.replace("zero: i32[1]", "zero: i32[7, 1]"))
    )


def test_weights_are_packed_once_and_signed_bytes_moved_once():
    found = run("use_byte_products", graph_of(given(MATMUL, "i8", 2)), BYTES)
    products = [n for n in found.nodes if n.op.name == "matmul_bytes"]
    assert len(products) == 2
    assert products[0].inputs == products[1].inputs
    assert [n.op.name for n in found.nodes].count("sub") == 2


def test_signed_bytes_are_moved_before_their_pad():
    found = run("use_byte_products", graph_of(given(CONV, "i8", -7)), BYTES)
    assert [n.op.name for n in found.nodes] == [
        "cast", "add", "pad", "conv_bytes", "sub", "cast",
    ]  # fmt: skip
    pad = found.nodes[2].op
    assert isinstance(pad, Pad)
    assert pad.value == 121


def test_bytes_are_widened_before_their_pad():
    found = run("use_byte_products", graph_of(given(CONV, "i8", -7)), CONTEXT)
    assert [n.op.name for n in found.nodes] == ["cast", "pad", "conv_bytes", "sub", "cast"]
    pad = found.nodes[1].op
    assert isinstance(pad, Pad)
    assert pad.value == -7
    assert str(found.nodes[1].output.type.dtype) == "i16"


def test_others_read_bytes_that_were_widened_for_products():
    text = given(MATMUL, "u8", 2).replace("return s", "c: i32[n, 7, 48] = neg(b)\n    return s, c")
    found = run("use_byte_products", graph_of(text), CONTEXT)
    (wide,) = [n.output for n in found.nodes if str(n.output.type.dtype) == "i16"]
    readers = sorted(n.op.name for n in found.nodes if wide in n.inputs)
    assert readers == ["cast", "matmul_bytes", "matmul_bytes"]
    assert [n.output for n in found.nodes if found.inputs[0] in n.inputs] == [wide]


def test_what_an_engine_leaves_is_taken():
    assert operators(graph_of(PLAIN), PassContext(target=Target(features=ENGINE | VNNI))) == [
        "matmul_bytes",
        "cast",
    ]


@pytest.mark.parametrize(
    "context", [AVX512, PassContext(), PassContext(target=Target(features=VNNI, gpu=Gpu()))]
)
def test_other_targets_change_nothing(context):
    graph = graph_of(PLAIN)
    assert operators(graph) == ["matmul_bytes", "cast"]
    assert run("use_byte_products", graph, context) is graph


def test_vectors_of_eight_lanes_have_such_products_too():
    narrow = PassContext(target=Target(features=frozenset({"avx2", "avxvnni"})))
    assert operators(graph_of(PLAIN), narrow) == ["matmul_bytes", "cast"]
    assert operators(graph_of(PLAIN), CONTEXT) == ["cast", "matmul_bytes", "cast"]
    skylake = PassContext(target=Target(features=frozenset({"avx2", "avx512f", "avx512bw"})))
    assert operators(graph_of(PLAIN), skylake) == ["cast", "matmul_bytes", "cast"]
    mixed = PassContext(target=Target(features=frozenset({"avx512f", "avxvnni"})))
    assert "matmul_bytes" not in operators(graph_of(PLAIN), mixed)  # none of 16 lanes


def test_weights_that_are_bytes_keep_their_scale_apart():
    bytes_ = np.array([[1, -128], [127, 0]], np.float32)
    for context in (BYTES, CONTEXT, PassContext(target=Target(features=ENGINE))):
        assert is_kept_whole(context, bytes_)
        assert not is_kept_whole(context, bytes_ * np.float32(1.01))
    assert not is_kept_whole(BYTES, bytes_ * 2)  # exact in bf16, but no byte
    assert not is_kept_whole(AVX512, bytes_)


WIDE = PLAIN.replace(
    "x: f32[1, 256] = cast(q, to=f32)",
    """z: i32[()] = const({zero})
    a: i32[1, 256] = cast(q, to=i32)
    b: i32[1, 256] = sub(a, z)
    x: f32[1, 256] = cast(b, to=f32)""",
)
COMPUTED = PLAIN.replace("q: u8[1, 256]", "q: u8[1, 256], z: i32[()]").replace(
    "x: f32[1, 256] = cast(q, to=f32)",
    """a: i32[1, 256] = cast(q, to=i32)
    b: i32[1, 256] = sub(a, z)
    x: f32[1, 256] = cast(b, to=f32)""",
)


def test_a_number_that_is_no_byte_may_be_taken_away_while_sums_fit():
    """Of 256 weights of 127: 65,793 fills an i32 together with a byte."""
    assert "matmul_bytes" in operators(graph_of(WIDE.format(zero=65_000), 127, 127))
    assert "matmul_bytes" not in operators(graph_of(WIDE.format(zero=66_100), 127, 127))
    assert "matmul_bytes" not in operators(graph_of(WIDE.format(zero=2**31 - 1), 127, 127))


STAYING = {
    "one_planar_channel": graph_of(PLANAR.format(kind="u8", zero=3, channels=1)),
    "a_computed_number_of_any_size": graph_of(COMPUTED),
    "a_number_of_more_dimensions": graph_of("""
def main(q: u8[7, 48]):
    w: f32[3, 48, 16] = const()
    z: i32[1, 1, 1] = const(3)
    a: i32[7, 48] = cast(q, to=i32)
    b: i32[1, 7, 48] = sub(a, z)
    x: f32[1, 7, 48] = cast(b, to=f32)
    y: f32[1, 7, 40] = matmul_packed(x, w, n=40)
    return y
"""),
    "an_open_depth": graph_of("""
def main(k: size, q: u8[7, k]):
    w: f32[3, 48, 16] = const()
    x: f32[7, k] = cast(q, to=f32)
    y: f32[7, 40] = matmul_packed(x, w, n=40)
    return y
"""),
    "weights_that_are_no_bytes": graph_of(PLAIN, -129, 100),
    "weights_that_are_not_whole": read(PLAIN),
    "floats": graph_of(PLAIN.replace("q: u8", "q: f32")),
    "wide_integers": graph_of(PLAIN.replace("q: u8", "q: i32")),
    "double": graph_of(PLAIN.replace("f32", "f64")),
    "too_long_a_sum": graph_of(PLAIN.replace("256", "70000").replace("f32[16, 7", "f32[1, 7")
                               .replace("y: f32[1, 70000]", "y: f32[1, 16]")
                               .replace("n=70000", "n=16"), 127, 127),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYING)
def test_what_has_no_such_product_stays(name):
    assert not any("bytes" in op for op in operators(STAYING[name]))
