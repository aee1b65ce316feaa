"""use_byte_products takes tiles of bytes where a matrix engine has them and they are faster."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dlc.core.fork import Choices, Way
from dlc.core.target import Target
from dlc.graph import byte_engine
from dlc.graph.evaluate import evaluate
from dlc.graph.ops.byte_tiles import ConvPlanarByteTiles
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import ENGINE, VNNI, run
from tests.graph.test_byte_products import (
    CONV,
    DYNAMIC,
    GROUPS,
    MATMUL,
    NARROWED,
    PARTS,
    PLAIN,
    PLANAR,
    UNPADDED,
    given,
    graph_of,
    optimized,
    random_bytes,
)

TARGET = Target(features=ENGINE | VNNI | {"amx-int8"}, cores=2, l2_bytes=2 << 20)
TILES = PassContext(target=TARGET)


@pytest.fixture
def always(monkeypatch):
    """Have tiles wherever there is a form on them."""
    monkeypatch.setattr(byte_engine, "MARGIN", math.inf)


def operators(graph, context=TILES):
    return [node.op.name for node in run("use_byte_products", graph, context).nodes]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("kind", "zero"), [("u8", 3), ("u8", 0), ("i8", -7), ("i8", 0)])
@pytest.mark.parametrize("text", [CONV, UNPADDED, MATMUL, NARROWED, PARTS])
def test_every_sum_is_the_same(text, kind, zero):
    graph = graph_of(given(text, kind, zero))
    found = optimized(graph, TILES)
    names = [node.op.name for node in found.nodes]
    assert {"conv_byte_tiles", "matmul_byte_tiles"} & set(names)
    assert not {"conv_blocked", "matmul_packed", "conv_bytes", "matmul_bytes"} & set(names)
    feeds = random_bytes(graph)
    wanted, got = (evaluate(g, feeds, {"n": 2}) for g in (graph, found))
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_a_zero_may_be_computed(kind):
    graph = graph_of(DYNAMIC.format(kind=kind))
    found = run("use_byte_products", graph, TILES)
    assert "matmul_byte_tiles" in [n.op.name for n in found.nodes]
    feeds = random_bytes(graph)
    np.testing.assert_array_equal(evaluate(found, feeds)["y"], evaluate(graph, feeds)["y"])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("depth", "pads"), [(48, 0), (62, 1), (63, 1), (64, 0)])
def test_rows_are_filled_to_words_and_tiles_to_rows(depth, pads):
    graph = graph_of(MATMUL.format(kind="u8", zero=3).replace("48", str(depth)))
    found = run("use_byte_products", graph, TILES)
    names = [node.op.name for node in found.nodes]
    assert names.count("matmul_byte_tiles") == 2
    assert names.count("pad") == pads
    feeds = random_bytes(graph)
    wanted, got = (evaluate(g, feeds, {"n": 2}) for g in (graph, found))
    np.testing.assert_array_equal(got["s"], wanted["s"])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("channels", "blocks"), [(2, 1), (3, 1), (4, 1), (5, 2), (12, 3)])
@pytest.mark.parametrize(("kind", "zero"), [("u8", 114), ("i8", -7)])
def test_few_planar_channels_stay_planar(channels, blocks, kind, zero):
    graph = graph_of(PLANAR.format(kind=kind, zero=zero, channels=channels))
    found = optimized(graph, TILES)
    tail = ["pad", "conv_planar_byte_tiles", "sub", "cast"]  # a line has less than 8 pixels more
    assert [n.op.name for n in found.nodes][-4:] == tail
    (w,) = [n.inputs[1] for n in found.nodes if n.op.name == "conv_planar_byte_tiles"]
    assert w.type.static_shape[:4] == (4, blocks, 2, 1)
    feeds = random_bytes(graph)
    np.testing.assert_array_equal(evaluate(found, feeds)["y"], evaluate(graph, feeds)["y"])


@pytest.mark.usefixtures("always")
def test_tiles_are_packed_once():
    found = run("use_byte_products", graph_of(given(MATMUL, "u8", 2)), TILES)
    products = [n for n in found.nodes if n.op.name == "matmul_byte_tiles"]
    assert len(products) == 2
    assert products[0].inputs == products[1].inputs


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "text",
    [
        given(GROUPS, "u8", 3),
        PLANAR.format(kind="u8", zero=3, channels=3)
        .replace("(2, 1)", "(2, 1), dilation=(1, 2)")
        .replace("6, 11, 16", "6, 9, 16"),
        PLAIN,  # an only row
        MATMUL.format(kind="u8", zero=3).replace("48", "44"),
        MATMUL.format(kind="u8", zero=3).replace("40", "24").replace("[3,", "[2,"),
    ],
    ids=["groups", "dilated", "row", "depth", "columns"],
)
def test_vectors_have_what_has_no_form_on_tiles(text):
    names = operators(graph_of(text))
    assert {"conv_bytes", "matmul_bytes"} & set(names)
    assert not any("tiles" in name for name in names)


SHARED = """
def main(q: u8[1, 2, 26, 26]):
    w: f32[3, 2, 4, 4, 16] = const()
    x: f32[1, 2, 26, 26] = cast(q, to=f32)
    y: f32[1, 3, 12, 12, 16] = conv_planar(x, w, stride=(2, 2))
    z: f32[1, 3, 8, 8, 16] = conv_planar(x, w, stride=(3, 3))
    v: f32[1, 3, 12, 23, 16] = conv_planar(x, w, stride=(2, 1))
    return y, z, v
"""


@pytest.mark.usefixtures("always")
def test_convolutions_of_other_strides_have_tiles_of_their_own():
    """Steps of two and of three lines have as many rows, of other lines."""
    graph = graph_of(SHARED)
    found = run("use_byte_products", graph, TILES)
    first, second, third = (n for n in found.nodes if n.op.name == "conv_planar_byte_tiles")
    assert first.inputs[1].type == second.inputs[1].type
    assert first.inputs[1] is not second.inputs[1]
    assert first.inputs[1] == third.inputs[1]
    feeds = random_bytes(graph)
    wanted, got = (evaluate(g, feeds) for g in (graph, found))
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(("width", "spare"), [(240, 0), (241, 0), (242, 0), (239, 1)])
def test_an_image_is_widened_where_its_last_pixels_are_missing(width, spare):
    out = (width - 7) // 4 + 1
    text = f"""
def main(q: u8[1, 3, 9, {width}]):
    w: f32[4, 3, 7, 7, 16] = const()
    x: f32[1, 3, 9, {width}] = cast(q, to=f32)
    y: f32[1, 4, 3, {out}, 16] = conv_planar(x, w, stride=(1, 4))
    return y
"""
    found = run("use_byte_products", graph_of(text), TILES).nodes
    (node,) = (n for n in found if n.op.name == "conv_planar_byte_tiles")
    assert isinstance(node.op, ConvPlanarByteTiles)
    assert node.op.spare == spare
    assert [n.op.name for n in found].count("pad") == (spare > 0)


EMPTY = """
def main(q: u8[{n}, 4, 5, {width}, 16]):
    w: f32[4, 4, 3, 3, 16, 16] = const()
    x: f32[{n}, 4, 5, {width}, 16] = cast(q, to=f32)
    y: f32[{n}, 4, 3, {out}, 16] = conv_blocked(x, w)
    return y
"""


@pytest.mark.parametrize(("n", "width", "ways"), [(0, 5, 0), (1, 2, 0), (1, 3, 1)])
def test_nobody_is_asked_about_nothing(n, width, ways):
    """No search may choose tiles for a result without elements: no rule knows its loops."""
    forks = []
    graph = graph_of(EMPTY.format(n=n, width=width, out=width - 2))
    operators(graph, replace(TILES, on_fork=forks.append))
    assert len(forks) == ways


@pytest.mark.usefixtures("always")
def test_planar_images_of_an_open_size_stay_with_vectors():
    text = PLANAR.format(kind="u8", zero=3, channels=3).replace("main(", "main(h: size, ")
    text = text.replace("14, 13", "h, 13").replace("6, 11, 16", "(h - 3) // 2 + 1, 11, 16")
    assert "conv_bytes" in operators(graph_of(text))


@pytest.mark.usefixtures("always")
def test_vectors_that_add_two_products_leave_tiles_alone():
    """Their rows are widened, and weights filled up to pairs."""
    features = TARGET.features - {"avx512vnni"} | {"avx512bw"}
    names = operators(graph_of(LARGE), PassContext(target=replace(TARGET, features=features)))
    assert "conv_bytes" in names


LARGE = """
def main(q: u8[1, 16, 30, 30, 16]):
    w: f32[16, 16, 3, 3, 16, 16] = const()
    x: f32[1, 16, 30, 30, 16] = cast(q, to=f32)
    y: f32[1, 16, 28, 28, 16] = conv_blocked(x, w)
    return y
"""
OPEN = """
def main(n: size, q: u8[n, 512]):
    w: f32[32, 512, 16] = const()
    x: f32[n, 512] = cast(q, to=f32)
    y: f32[n, 512] = matmul_packed(x, w, n=512)
    return y
"""
BATCH = LARGE.replace("q: u8[1", "n: size, q: u8[n").replace("f32[1,", "f32[n,")
SMALL = LARGE.replace("30, 30", "2, 2").replace("28, 28", "2, 2").replace("3, 3", "1, 1")


@pytest.mark.parametrize(
    ("text", "target", "chosen"),
    [
        (LARGE, TARGET, "conv_byte_tiles"),
        (BATCH, TARGET, "conv_byte_tiles"),
        (OPEN, TARGET, "matmul_byte_tiles"),
        (LARGE, replace(TARGET, tile_cycles=90), "conv_byte_tiles"),
        (SMALL.replace("16, 16, 1, 1", "1, 1, 1, 1").replace("16, 2, 2", "1, 2, 2"), TARGET,
         "conv_bytes"),
        (LARGE, replace(TARGET, tile_cycles=200), "conv_bytes"),
        (LARGE, replace(TARGET, features=TARGET.features - {"amx-int8"}), "conv_bytes"),
        (LARGE, replace(TARGET, features=VNNI), "conv_bytes"),
        (LARGE, replace(TARGET, features=VNNI | {"amx-int8"}), "conv_byte_tiles"),
    ],
    ids=["large", "batch", "rows", "slower", "small", "slow", "of_bf16", "vectors", "int8"],
)  # fmt: skip
def test_estimates_choose(text, target, chosen):
    assert chosen in operators(graph_of(text), PassContext(target=target))


def test_a_search_may_choose():
    graph, forks = graph_of(LARGE), []
    assert "conv_byte_tiles" in operators(graph, replace(TILES, on_fork=forks.append))
    (fork,) = forks
    assert (fork.kind, fork.options) == ("byte_engine", ("vectors", "matrix"))
    vectors, matrix = fork.cycles
    assert 0 < matrix < vectors
    choices = Choices({fork.key: Way("vectors", "matrix")})
    assert "conv_bytes" in operators(graph, replace(TILES, choices=choices))
