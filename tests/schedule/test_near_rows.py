"""Rows from memory pass the columns strip by strip, and what whole strips leave behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.graph.lower import lower_group
from dlc.graph.text import parse_graph
from dlc.schedule.abstract_sizes import abstract_sizes
from dlc.schedule.interpret import evaluate_size, run_func
from dlc.schedule.loop import For, Func, LoopKind, loops, walk
from dlc.schedule.pipeline import optimize
from tests.schedule.data import inputs, run_alike

TINY = Target(
    features=frozenset({"avx2", "fma"}), cores=1, l2_bytes=8192, thread_operations=1 << 40
)
"""Strips of 2 KiB, which are 16 rows; memory begins behind 32 KiB, or 256 rows."""


def conv(
    image: str,
    kernel: str = "1",
    stride: int = 1,
    blocks: int = 4,
    images: str = "1",
    results: int = 8,
) -> Func:
    """A convolution of blocks of 8 channels into `results`; sizes of one letter are open."""
    sizes, taps = image.split("x"), kernel.split("x")
    known = "".join(f"{n}: size, " for n in (images, *sizes) if n.isalpha())
    steps, ones = f"{stride}, " * len(sizes), "1, " * len(sizes)
    out = ", ".join(f"({n} - {k}) // {stride} + 1" for n, k in zip(sizes, taps, strict=True))
    text = f"""
def main({known}x: f32[{images}, {blocks}, {", ".join(sizes)}, 8], b: f32[1, {results}, {ones}8],
         w: f32[{results}, {blocks}, {", ".join(taps)}, 8, 8]):
    y: f32[{images}, {results}, {out}, 8] = conv_blocked(x, w, stride=({steps}), dilation=({ones}))
    z: f32[{images}, {results}, {out}, 8] = add(y, b)
    return z
"""
    return lower_group(parse_graph(text), "f")


def strips(func: Func) -> list[str]:
    """The extents of all loops, in order, that are neither in registers nor over summands."""
    kinds = (LoopKind.SERIAL, LoopKind.PARALLEL)
    found = [s for s in walk(func.body) if isinstance(s, For) and s.kind in kinds]
    return [str(s.extent) for s in found if not s.var.startswith("r")]


def same(plain: Func, target: Target, **sizes: int) -> None:
    """A schedule computes what the loops did before."""
    func, passed = abstract_sizes(plain)
    values = {n: evaluate_size(e, sizes) for n, e in zip(func.sizes, passed, strict=True)}
    arrays = inputs(plain, sizes)
    got = run_alike(optimize(func, target), func, values, arrays)["out"]
    np.testing.assert_array_equal(got, run_func(plain, sizes, arrays)["out"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("func", "found"),
    [
        (conv("300"), ["25", "4", "2"]),  # of 12 rows, which tiles of 6 divide
        (conv("301"), ["25", "4", "2", "2"]),
        (conv("7x42", "1x1"), ["7", "3", "4", "2", "7", "4"]),  # of a line, and what is left of it
        (conv("18x17", "1x1"), ["18", "4", "2"]),  # of one line, which is somewhat too long
        (conv("5x9x6", "1x1x1"), ["5", "4", "4", "2", "5", "4"]),  # of two lines, and one more
    ],
    ids=["line", "odd", "image", "a line", "volume"],
)
def test_strips_of_known_rows(func, found):
    assert strips(optimize(func, TINY)) == found
    same(func, TINY)


@pytest.mark.parametrize(
    ("func", "found"),
    [
        (conv("250"), ["4", "50"]),
        (conv("300", blocks=1), ["4", "50"]),  # 10 KiB, side by side
        (conv("60x10", "1x1", blocks=2), ["60", "4", "2"]),
        (conv("20x20", "3x3"), ["4", "18", "3"]),
    ],
    ids=["near rows", "few bytes", "near columns, which pass lines", "columns that cost more"],
)
def test_other_rows_are_no_strips(func, found):
    assert strips(optimize(func, TINY)) == found


@pytest.mark.parametrize(
    ("image", "stride", "found"),
    [
        ("14x14", 2, ["85", "7", "7"]),  # lines pass each tile of columns, the last one by itself
        ("20x20", 1, ["20", "128", "4"]),  # all tiles pass a line: 1.6 MB are not near
        ("40x40", 2, ["20", "128", "4"]),  # nor are these, which skip lines and pixels
    ],
)
def test_rows_that_strides_leave_few_of_pass_columns(image, stride, found):
    target = replace(TINY, l2_bytes=1 << 21)
    func = conv(image, "1x1", stride, blocks=128, results=256)
    assert strips(optimize(func, target)) == found


@pytest.mark.thorough
@pytest.mark.parametrize("width", [0, 3, 256, 300])
def test_strips_of_an_open_line(width):
    func = conv("w")
    assert strips(optimize(func, TINY))[0] == "w // 256 * 4"
    same(func, TINY, w=width)


@pytest.mark.thorough
@pytest.mark.parametrize(("width", "images"), [(1, 2), (260, 2)])
def test_strips_of_an_open_number_of_open_lines(width, images):
    same(conv("w", "3", 2, images="n"), TINY, w=2 * width + 1, n=images)


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), [(0, 4), (5, 9), (8, 1), (16, 6), (25, 7), (20, 27)])
def test_strips_of_an_open_image(height, width):
    lines = conv("hxw", "1x2")  # that others end
    assert strips(optimize(lines, TINY))[:2] == ["h // 8 * 4", "8"]
    same(lines, TINY, h=height, w=width + 1)
    same(conv("hxw", "3x3", 2), TINY, h=2 * height + 1, w=2 * width + 1)
    whole = conv("hxw", "1x1")
    assert strips(optimize(whole, TINY))[0] == "h * w // 256 * 4"
    same(whole, TINY, h=height, w=width)


@pytest.mark.parametrize(("kernel", "ranks"), [("1x1", {3}), ("3x3", {5}), ("1x2", {5})])
def test_lines_are_one_only_where_a_kernel_tells_none_apart(kernel, ranks):
    """Else buffers are as they were: other rules know an image by its dimensions."""
    fast = optimize(conv("hxw", kernel), TINY)
    assert {p.type.rank for p in fast.params if p.name in ("in0", "out")} == ranks


def test_an_image_of_few_open_lines():
    same(conv("5xw", "1x1"), TINY, w=9)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("image", "order"),
    [("6x5", "i0_i1_1o_i2_2"), ("30x10", "i0_i2_2_i1_1o_i3_1o")],
    ids=["each a strip", "large, each line one"],
)
def test_of_an_open_number_of_images(image, order):
    func = conv(image, "1x1", images="n")
    (shared,) = [v for v, f in loops(optimize(func, TINY).body).items() if v.startswith("i0")]
    assert shared == order  # columns are i1
    same(func, TINY, n=3)


def product(rows: str) -> Func:
    """Rows of eight summands, and 64 columns."""
    known = "n: size, " if rows == "n" else ""
    text = f"""
def main({known}x: f32[{rows}, 8], w: f32[8, 8, 8]):
    y: f32[{rows}, 64] = matmul_packed(x, w, n=64)
    return y
"""
    return lower_group(parse_graph(text), "f")


def test_rows_of_a_matrix_are_strips_where_columns_are_few_beside_them():
    func = product("1100")
    assert strips(optimize(func, TINY))[:2] == ["10", "4"]  # of 110 rows
    same(func, TINY)
    assert strips(optimize(product("900"), TINY))[:2] == ["4", "150"]  # near ones
    assert "strip" not in str(optimize(product("n"), TINY))


def test_rows_of_an_open_matrix_whose_summands_lie_apart_are_no_strips():
    func = lower_group(
        parse_graph("""
def main(m: size, x: f32[9000, m], w: f32[2, 9000, 8]):
    t: f32[m, 9000] = transpose(x, perm=(1, 0))
    y: f32[m, 16] = matmul_packed(t, w, n=16)
    return y
"""),
        "f",
    )
    assert strips(optimize(func, TINY))[0] == "m // 4"
