"""Products on the matrix engine: scheduled kernels against the operators' references."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.codegen.llvm.tile_registers import lefts
from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.layout import pack_columns
from dlc.graph.lower import lower_group
from dlc.graph.ops.layout import Interleave
from dlc.graph.ops.narrow import Narrow, Widen
from dlc.graph.ops.planes import pack_tiles
from dlc.graph.ops.planes_conv import ConvPlanes
from dlc.graph.ops.planes_matmul import MatMulPlanes, MatMulSplit
from dlc.graph.ops.planes_planar import ConvPlanarPlanes, reach_of
from dlc.graph.text import parse_graph
from dlc.schedule.edit import loops_around
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Block, If, Invoke, allocs, loops, walk
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import matrix, schedule_func
from dlc.schedule.rules.strip import Shape, choose_strip
from dlc.schedule.text import parse_func
from dlc.te.expr import Var, index
from dlc.te.tensor import elementwise, placeholder
from dlc.te.types import TensorType
from tests.codegen.jit import AVX2, NATIVE, Kernel, check
from tests.codegen.tiles import TILES

ENGINE = replace(NATIVE, features=NATIVE.features | TILES | {"avx512bf16"})

needs_engine = pytest.mark.usefixtures("matrix_engine")


def conv(x, w, count, out_blocks, **attributes):
    """A convolution of x [n, cb, h, w, 16] by dense weights [cb * 16, kh, kw, ob * 16]."""
    op = ConvPlanes(blocks=out_blocks, slack=200, **attributes)
    return op, [x, pack_tiles(w, count)]


def matmul(x, w, count):
    op = MatMulPlanes(n=w.shape[1], slack=200)
    return op, [x, pack_tiles(w, count)]


def planar(x, w, count, out_blocks, **attributes):
    """A convolution of x [n, c, h, w] by dense weights [c, kh, kw, ob * 16]."""
    c, *lines, width, columns = w.shape
    wide = np.zeros((c, reach_of(width), *lines, 1, columns), np.float32)
    wide[:, :width, ..., 0, :] = np.moveaxis(w, -2, 1)
    op = ConvPlanarPlanes(blocks=out_blocks, width=width, slack=200, **attributes)
    return op, [x, pack_tiles(wide.reshape(-1, *lines, 1, columns), count)]


def lowered(op, arrays, epilogue=None):
    types = [DType.F32, DType.BF16]
    inputs = tuple(
        placeholder(name, TensorType(a.shape, dtype))
        for name, a, dtype in zip("xw", arrays, types, strict=True)
    )
    result = op.compute(*inputs)
    if epilogue is not None:
        result = elementwise("done", epilogue, result)
    return lower_tensors("product", (), inputs, (result,))


def run(op, arrays, knobs=None, epilogue=None):
    func = lowered(op, arrays, epilogue)
    assert matrix.match(func, ENGINE) is not None
    steps = schedule_func(func, ENGINE, knobs or {}).steps
    kernel = Kernel(optimize(func, ENGINE, steps), ENGINE)
    assert "tdpbf16ps" in kernel.ir
    return kernel({}, dict(zip("xw", arrays, strict=True)))["out"]


def small(seed, *shape):
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CASES = {
    "one_tile": conv(small(0, 1, 1, 3, 4, 16), small(1, 16, 1, 1, 16), 3, 1),
    "odd_blocks": conv(small(0, 1, 3, 9, 7, 16), small(1, 48, 3, 3, 48), 3, 3),
    "batch": conv(small(0, 2, 2, 7, 7, 16), small(1, 32, 3, 3, 32), 2, 2),
    "strided": conv(small(0, 1, 2, 10, 13, 16), small(1, 32, 3, 3, 32), 3, 2, stride=(2, 2)),
    "strided_pixel": conv(small(0, 1, 2, 9, 8, 16), small(1, 32, 1, 1, 64), 1, 4, stride=(2, 1)),
    "dilated": conv(small(0, 1, 2, 9, 9, 16), small(1, 32, 3, 2, 32), 3, 2, dilation=(2, 3)),
    "line": conv(small(0, 1, 2, 40, 16), small(1, 32, 3, 32), 3, 2, stride=(1,), dilation=(1,)),
    "few_channels": planar(small(0, 2, 3, 11, 16), small(1, 3, 4, 7, 48), 3, 3, stride=(2, 2)),
    "two_blocks": planar(small(0, 1, 9, 5, 12), small(1, 9, 3, 3, 32), 1, 2, stride=(1, 2)),
    "planar_line": planar(small(0, 2, 4, 50), small(1, 4, 8, 32), 2, 2, stride=(3,), dilation=(1,)),
    "rows": matmul(small(0, 2, 37, 64), small(1, 64, 80), 3),
    "two_rows": matmul(small(0, 2, 32), small(1, 32, 32), 2),
    "only_row": matmul(small(0, 1, 96), small(1, 96, 80), 1),
    "only_row_of_planes": matmul(small(0, 1, 1, 32), small(1, 32, 48), 2),
    "only_rows_of_two": matmul(small(0, 2, 1, 64), small(1, 64, 32), 3),
}


@needs_engine
@pytest.mark.parametrize(("columns_outer", "wide"), [(0, 2), (1, 2), (1, 1)])
@pytest.mark.parametrize("name", CASES)
def test_products_are_exact_for_small_integers(name, columns_outer, wide):
    op, arrays = CASES[name]
    knobs = {"columns_outer": columns_outer, "wide": wide, "strip": 3}
    found = run(op, arrays, {**knobs, "first_summand": 2 * columns_outer})
    np.testing.assert_array_equal(found, op.reference(*arrays))


def test_rows_of_a_planar_line_are_split_by_instructions():
    op, arrays = CASES["planar_line"]
    func = lowered(op, arrays)
    text = str(optimize(func, ENGINE, schedule_func(func, ENGINE, {}).steps))
    assert "split_bf16_2_of_8" in text
    assert "min(14, " in text  # tiles have more rows than there are


def test_an_only_row_is_split_once_and_asks_for_no_columns():
    """All rows of its tile are the same, and a loop has its columns near."""
    op, arrays = CASES["only_row"]
    func = lowered(op, arrays)
    found = optimize(func, ENGINE, schedule_func(func, ENGINE, {}).steps)
    assert allocs(found.body)["rows"].buffer.type == TensorType((3, 1, 1, 32), DType.BF16)
    text = str(found)
    assert "tile_dot_row_bf16" in text
    assert "prefetch" not in text
    assert text.count("parallel") == 1


GROUPED = conv(small(0, 1, 2, 9, 9, 16), small(1, 32, 3, 2, 128), 2, 8)


@needs_engine
@pytest.mark.parametrize(
    "knobs",
    [
        {"high": 1, "wide": 1, "columns_outer": 0, "ahead": 0},
        {"high": 3, "wide": 2, "columns_outer": 1, "ahead": 4, "planes_inside": 1},
        {"high": 6, "wide": 1, "columns_outer": 2, "ahead": 1, "planes_inside": 0},
        {"high": 2, "wide": 2, "columns_outer": 2, "ahead": 2, "first_summand": 1},
    ],
)
def test_any_tiles_and_groups_of_columns_give_the_same(knobs):
    op, arrays = GROUPED
    found = run(op, arrays, {"strip": 4, **knobs})
    np.testing.assert_array_equal(found, op.reference(*arrays))


def test_sums_without_blocks_of_columns_have_no_tiles():
    text = """
def main(a: f32[2, 24], b: f32[24, 16]):
    y: f32[2, 16] = matmul_pairs_computed(a, b)
    return y
"""
    func = lower_group(parse_graph(text), "product")
    assert matrix.match(func, ENGINE) is None
    a, b = small(0, 2, 24), small(1, 24, 16)
    found = Kernel(optimize(func, ENGINE), NATIVE)({}, {"in0": a, "in1": b})["out"]
    np.testing.assert_array_equal(found, a @ b)


def test_columns_in_groups_pass_a_strip_before_the_next_strip():
    op, arrays = GROUPED
    func = lowered(op, arrays)
    assert matrix.space(func, ENGINE).knobs["columns_outer"] == (0, 1, 2)
    found = [loops_around(optimize(func, ENGINE, steps_of(func, n)), "i1_3i") for n in (1, 2)]
    one, two = ([(f.kind.value, str(f.extent)) for f in around[:-1]] for around in found)
    assert one == [("parallel", "4"), ("range", "2")]
    assert two == [("parallel", "2"), ("range", "2"), ("range", "2")]


def test_knobs_say_how_many_tiles_and_how_far_ahead():
    op, arrays = GROUPED
    sums, found, _ = asked(op, arrays, wide=1, high=3, ahead=0, strip=4)
    assert (sums.buffer.type.static_shape, found) == ((1, 1, 48, 16), [])
    for ahead, wanted in ((1, "i1_3oi * 2 + 2"), (4, "i1_3oi * 2 + 8")):
        _, found, _ = asked(op, arrays, wide=2, ahead=ahead, strip=4)
        assert {place[0] for _, place in found} == {wanted}


@needs_engine
def test_one_block_of_columns_needs_no_loop_that_names_it():
    text = """
def main(x: f32[1, 3, 6, 9, 16], w: bf16[2, 2, 2, 3, 1, 16, 16, 2], b: f32[1, 1, 1, 1, 16]):
    a: f32[1, 1, 5, 7, 16] = conv_planes(x, w, blocks=1, slack=60)
    y: f32[1, 1, 5, 7, 16] = add(a, b)
    return y
"""
    func = lower_group(parse_graph(text), "product")
    op, (x, w) = conv(small(0, 1, 3, 6, 9, 16), small(1, 48, 2, 3, 16), 1, 1)
    bias = small(2, 1, 1, 1, 1, 16)
    kernel = Kernel(optimize(func, ENGINE, schedule_func(func, ENGINE, {}).steps), ENGINE)
    assert "tdpbf16ps" in kernel.ir
    found = kernel({}, {"in0": x, "in1": w, "in2": bias})["out"]
    np.testing.assert_array_equal(found, op.reference(x, w) + bias)


@needs_engine
@pytest.mark.parametrize(
    "name", ["one_tile", "odd_blocks", "strided", "few_channels", "two_blocks", "rows"]
)
def test_rows_of_bf16_are_copied(name):
    op, (x, w) = CASES[name]
    w = w[..., :1, :, :, :]  # small integers have no other planes
    given = placeholder("x", TensorType(x.shape, DType.BF16))
    tiles = placeholder("w", TensorType(w.shape, DType.BF16))
    result = Narrow().compute(op.compute(Widen().compute(given), tiles))
    func = lower_tensors("product", (), (given, tiles), (result,))
    fast = optimize(func, ENGINE, schedule_func(func, ENGINE, {}).steps)
    assert "split_bf16" not in str(fast)
    assert not any(name.startswith("widen") for name in allocs(fast.body))
    found = Kernel(fast, ENGINE)({}, {"x": round_to(x, DType.BF16), "w": w})["out"]
    wanted = round_to(op.reference(x, w), DType.BF16)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def steps_of(func, columns_outer):
    return schedule_func(func, ENGINE, {"strip": 4, "columns_outer": columns_outer}).steps


def asked(op, arrays, **knobs):
    """What a kernel of 2 x 2 or tall tiles asks for: (instruction, place, times written out)."""
    steps = schedule_func(lowered(op, arrays), ENGINE, {"columns_outer": 1, **knobs}).steps
    fast = optimize(lowered(op, arrays), ENGINE, steps)
    sums = allocs(fast.body)["sums_tiles"]
    found = [s for s in walk(sums.body) if isinstance(s, Invoke) and "prefetch" in s.instruction]
    lines = emit_func(fast, ENGINE).count("call void @llvm.prefetch")
    return sums, [(s.instruction, [str(e) for e in s.operands[0][1]]) for s in found], lines


def test_a_tall_tile_keeps_its_columns_and_asks_for_those_some_steps_ahead():
    op, arrays = conv(small(0, 1, 2, 9, 9, 16), small(1, 32, 3, 3, 32), 3, 2)
    sums, found, lines = asked(op, arrays, wide=1, strip=7)
    assert sums.buffer.type.static_shape == (1, 1, 64, 16)
    assert lefts(sums.body, 4) == 1  # three planes of a column operand stay
    assert sorted((name, place[3]) for name, place in found) == [
        ("prefetch_bf16_l1", "r2 + 2"),  # 4 KB of 3 KB a step
        ("prefetch_bf16_l2", "r2 + 3"),
    ]
    assert lines == 2 * 3 * 16  # of a tile for each plane


def test_all_passes_ask_for_a_part_of_the_next_columns():
    op, arrays = conv(small(0, 1, 2, 9, 9, 16), small(1, 32, 3, 3, 64), 1, 4)
    _, found, lines = asked(op, arrays, wide=2, strip=7)
    ((name, place),) = found
    assert (name, place[0]) == ("prefetch_bf16_l2", "i1_3oi * 2 + 2")
    products = 2 * 2  # of a pass for each step, with one plane
    passes, steps = 4 // 2, 9
    assert lines == products * (2 * steps * 16 // (passes * steps * products))


def test_columns_that_all_pass_a_strip_are_asked_for_before_the_next_of_them():
    op, arrays = conv(small(0, 1, 2, 9, 9, 16), small(1, 32, 3, 3, 64), 1, 4)
    _, found, _ = asked(op, arrays, columns_outer=0, wide=2, strip=7)
    ((name, place),) = found
    assert (name, place[0]) == ("prefetch_bf16_l2", "i1_3o * 2 + 2")
    op, arrays = conv(small(0, 1, 2, 9, 9, 16), small(1, 32, 3, 3, 32), 1, 2)
    assert not asked(op, arrays, columns_outer=0, wide=2, strip=7)[1]  # there are no others


def test_columns_that_stay_in_the_second_cache_are_not_asked_for_by_each_strip():
    op, arrays = conv(small(0, 1, 2, 9, 9, 16), small(1, 32, 3, 3, 64), 1, 4)
    func, knobs = lowered(op, arrays), {"columns_outer": 0, "wide": 2, "strip": 2}

    def asks(l2_bytes, cores, **more):
        target = replace(ENGINE, l2_bytes=l2_bytes, cores=cores)
        steps = schedule_func(func, target, {**knobs, **more}).steps
        return "prefetch" in str(optimize(func, target, steps))

    assert asks(1 << 14, 2)
    assert not asks(1 << 21, 2)  # of four strips, each core has two
    assert asks(1 << 21, 4)  # each core has one, and passes the columns once
    assert asks(1 << 21, 2, ahead=1)  # what a search has found


@pytest.mark.parametrize("columns", ["b: f32[64, 70]", "b: f32[64, 64]", "b: f32[n, 64]"])
def test_a_product_of_two_computed_operands_is_of_tiles(columns):
    """Nobody asks for columns that are no panels."""
    depth, width = columns[columns.index("[") + 1 : -1].split(", ")
    sizes = "m: size, n: size" if "n" in columns else "m: size"
    text = f"""
def main({sizes}, a: f32[m, {depth}], {columns}):
    y: f32[m, {width}] = matmul_pair(a, b, planes=2)
    return y
"""
    func = lower_group(parse_graph(text), "product")
    fast = str(optimize(func, ENGINE, schedule_func(func, ENGINE, {}).steps))
    assert "tile_dot_bf16" in fast
    assert "prefetch" not in fast


def test_few_rows_of_a_wide_kernel_are_tall():
    """A 3 x 3 kernel on a small map; not on a large one, nor rows that one position reads."""
    few = Shape(1, 7, 9, 7, 20, 400, 16, 144, 6, 3, 3072)
    assert choose_strip(few, ENGINE, {}).tall
    assert choose_strip(few, ENGINE, {}).lines == 7  # several strips would be several passes
    one_plane = choose_strip(replace(few, products=1, planes=1, row_bytes=1024), ENGINE, {})
    assert (one_plane.tall, one_plane.lines) == (False, 7)
    assert not choose_strip(replace(few, reach=0), ENGINE, {}).tall
    assert not choose_strip(replace(few, lines=8, width=10), ENGINE, {}).tall  # five tiles of rows
    large = Shape(1, 56, 58, 56, 118, 2000, 2, 18, 6, 3, 384)
    assert not choose_strip(large, ENGINE, {}).tall


def test_cores_split_rows_of_their_own_where_that_is_cheaper_than_reading_those_of_others() -> None:
    image = Shape(1, 28, 28, 28, 0, 32, 16, 4, 1, 1, 256)
    assert choose_strip(image, replace(ENGINE, cores=1), {}).columns_outside
    assert not choose_strip(image, replace(ENGINE, cores=2), {}).columns_outside
    deep = Shape(1, 7, 7, 7, 0, 32, 64, 16, 1, 1, 1024)  # 7 x 7, and 1 MB of columns
    assert choose_strip(deep, replace(ENGINE, cores=2), {}).columns_outside


def test_a_strip_stays_in_the_cache_while_more_columns_than_fit_stream_past_it() -> None:
    """1024 channels to 256 on 14 x 14: rows of 1.3 MB, which cores would read of each other."""
    image = Shape(1, 14, 14, 14, 0, 160, 8, 32, 6, 3, 6144)
    assert not choose_strip(image, replace(ENGINE, cores=2), {}).columns_outside


def test_registers_are_divided_as_needs_the_fewest_loads():
    def products(*pairs):
        places = ((("x", (index(a),)), ("w", (index(b),)), ("c", (index(0),))) for a, b in pairs)
        return Block(tuple(Invoke("tile_dot_bf16", each) for each in places))

    assert lefts(products(*((a, b) for b in range(2) for a in range(2))), 4) == 2
    assert lefts(products(*((a, b) for a in range(4) for b in range(3))), 4) == 1
    assert lefts(products(*((a, b) for b in range(4) for a in range(3))), 4) == 3


def open_rows(w, epilogue=lambda v: v):
    """Rows of an open number times packed planes, or times panels that are split."""
    is_split = w.ndim == 3
    sizes = (Var("batch"), Var("rows"), index(w.shape[1] * (1 if is_split else 32)))
    inputs = (
        placeholder("x", TensorType(sizes, DType.F32)),
        placeholder("w", TensorType(w.shape, DType.F32 if is_split else DType.BF16)),
    )
    op = (MatMulSplit if is_split else MatMulPlanes)(n=index(w.shape[0] * 16))
    result = elementwise("done", epilogue, op.compute(*inputs))
    return lower_tensors("product", ("batch", "rows"), inputs, (result,))


def split(x, w):
    return MatMulSplit(n=w.shape[1]), [x, pack_columns(w, 16)]


@needs_engine
@pytest.mark.parametrize(("count", "strip"), [(1, 32), (2, 32), (1, 256), (3, 64), (3, 256)])
def test_an_open_number_of_rows_fills_whole_tiles_and_writes_no_more(count, strip):
    """Three planes of columns are made where they are read."""
    make = split if count == 3 else partial(matmul, count=count)
    op, (dense, w) = make(small(0, 2, 171, 64), small(1, 64, 96))
    func = open_rows(w, lambda v: v * v + v)
    assert matrix.match(func, ENGINE) is not None
    steps = schedule_func(func, ENGINE, {"strip": strip}).steps
    kernel = Kernel(optimize(func, ENGINE, steps), ENGINE)
    assert "tdpbf16ps" in kernel.ir
    for batch, rows in ((1, 171), (2, 71), (1, 64), (2, 33), (1, 16), (2, 1), (1, 0), (0, 5)):
        x = np.ascontiguousarray(dense[:batch, :rows])
        found = kernel({"batch": batch, "rows": rows}, {"x": x, "w": w})["out"]
        whole = op.reference(x, w)
        np.testing.assert_array_equal(found, whole * whole + whole)


def test_columns_are_split_once_for_all_rows_of_a_strip():
    rng = np.random.default_rng(0)
    few = small(0, 2, 71, 64) * (rng.random((2, 71, 64)) < 0.1)  # so that sums are exact
    op, (dense, w) = split(few, rng.integers(-(2**19), 2**19, (64, 64)).astype(np.float32))
    func = open_rows(w)
    fast = optimize(func, ENGINE, schedule_func(func, ENGINE, {"strip": 64}).steps)
    made, rest = re.search(r"\n( *)tiles = alloc.*?\n((?:.*\n)*)", str(fast)).groups()
    packing, passes, *_ = re.findall(rf"^{made}for (?:.*\n)(?:{made} .*\n)*", rest, re.MULTILINE)
    assert "pack_rows_bf16_3" in packing
    assert "tile_zero_f32" in passes
    assert "tile_dot_bf16" in passes
    next_panels = r"prefetch_f32_l2\", w\[\w+ \* 2 \+ 2, 0,"
    assert re.search(next_panels, passes)
    for batch, rows in ((1, 71), (2, 33), (2, 1), (0, 3)):
        x = np.ascontiguousarray(dense[:batch, :rows])
        found = run_func(fast, {"batch": batch, "rows": rows}, {"x": x, "w": w})["out"]
        np.testing.assert_array_equal(found, op.reference(x, w))


def test_pairs_of_an_open_number_of_rows_ask_for_the_next_columns_behind_their_guard():
    _, (_, w) = matmul(small(0, 1, 64), small(1, 64, 96), 2)
    func = open_rows(w)
    fast = optimize(func, ENGINE, schedule_func(func, ENGINE, {"strip": 256}).steps)
    inside = list(walk(loops(fast.body)["r0"].body))
    asks = [s for s in inside if isinstance(s, Invoke) and s.instruction == "prefetch_bf16_l2"]
    (place,) = (str(s.operands[0][1][0]) for s in asks)
    assert place.endswith("* 2 + 2")
    assert not any(isinstance(s, If) for s in inside)  # else each product would load its operands
    alone = open_rows(w[:2])
    fast = optimize(alone, ENGINE, schedule_func(alone, ENGINE, {}).steps)
    assert "prefetch" not in str(fast)  # there are no other columns


def test_blocks_of_an_open_number_of_rows_do_not_share_places_of_a_cache():
    _, (_, w) = matmul(small(0, 1, 64), small(1, 64, 96), 2)
    func = open_rows(w)
    fast = optimize(func, ENGINE, schedule_func(func, ENGINE, {"strip": 256}).steps)
    shapes = [a.buffer.type.static_shape for a in allocs(fast.body).values()]
    assert (1, 2, 256 + 16, 2, 32) in shapes


OPEN_IMAGES = {
    "batch": (conv(small(0, 2, 2, 7, 7, 16), small(1, 32, 3, 3, 32), 2, 2), (True, False, False)),
    "both": (conv(small(0, 2, 3, 9, 37, 16), small(1, 48, 3, 3, 48), 1, 3), (True, True, True)),
    "height": (
        conv(small(0, 1, 2, 9, 200, 16), small(1, 32, 1, 2, 32), 1, 2),
        (False, True, False),
    ),
    "width": (
        conv(small(0, 1, 2, 9, 36, 16), small(1, 32, 3, 3, 32), 3, 2, stride=(2, 2)),
        (False, False, True),
    ),
    "dilated": (
        conv(small(0, 1, 1, 11, 36, 16), small(1, 16, 3, 2, 32), 1, 2, dilation=(2, 3)),
        (False, True, True),
    ),
}


@needs_engine
@pytest.mark.parametrize("name", OPEN_IMAGES)
def test_an_image_of_an_open_size_is_computed_by_lines(name):
    (op, (dense, w)), is_open = OPEN_IMAGES[name]
    names = ("n", "high", "wide")
    opened = {i: v for i, v, flag in zip((0, 2, 3), names, is_open, strict=True) if flag}
    shape = tuple(Var(opened[i]) if i in opened else index(s) for i, s in enumerate(dense.shape))
    inputs = (
        placeholder("x", TensorType(shape, DType.F32)),
        placeholder("w", TensorType(w.shape, DType.BF16)),
    )
    result = elementwise("done", lambda v: v * v + v, op.compute(*inputs))
    func = lower_tensors("product", tuple(opened.values()), inputs, (result,))
    kernel = Kernel(optimize(func, ENGINE, schedule_func(func, ENGINE, {}).steps), ENGINE)
    assert "tdpbf16ps" in kernel.ir
    for fewer in ((0, 0, 0), (0, 3, 2), (0, 1, 5), (1, 6, 30), (2, 2, 7)):
        cut = {i: fewer[(0, 2, 3).index(i)] for i in opened}
        x = np.ascontiguousarray(dense[tuple(slice(cut.get(i, 0), None) for i in range(5))])
        sizes = {v: x.shape[i] for i, v in opened.items()}
        whole = op.reference(x, w)
        found = kernel(sizes, {"x": x, "w": w})["out"]
        np.testing.assert_array_equal(found, whole * whole + whole)


@needs_engine
@pytest.mark.parametrize("high", [3, Var("high")], ids=["constant", "open"])
@pytest.mark.parametrize(("blocks", "goes_on"), [(1, True), (2, True), (1, False)])
def test_phases_of_a_stride_are_written_between_each_other(high, blocks, goes_on):
    op, arrays = conv(small(0, 1, 2, 3, 21, 16), small(1, 32, 1, 1, 64 * blocks), 1, 4 * blocks)
    shape = (index(1), index(2), index(high), index(21), index(16))
    inputs = (
        placeholder("x", TensorType(shape, DType.F32)),
        placeholder("w", TensorType(arrays[1].shape, DType.BF16)),
    )
    interleave = Interleave(stride=(2, 2))
    result = interleave.compute(op.compute(*inputs))
    if goes_on:
        result = elementwise("done", lambda v: v + v, result)
    sizes = ("high",) if isinstance(high, Var) else ()
    func = lower_tensors("product", sizes, inputs, (result,))
    kernel = Kernel(optimize(func, ENGINE, schedule_func(func, ENGINE, {}).steps), ENGINE)
    assert "tdpbf16ps" in kernel.ir
    found = kernel(dict.fromkeys(sizes, 3), dict(zip("xw", arrays, strict=True)))["out"]
    wanted = interleave.reference(op.reference(*arrays))
    np.testing.assert_array_equal(found, 2 * wanted if goes_on else wanted)


@needs_engine
def test_what_is_fused_behind_reads_the_sums_once_they_are_whole():
    op, arrays = CASES["odd_blocks"]
    found = run(op, arrays, epilogue=lambda v: v * v + v)
    whole = op.reference(*arrays)
    np.testing.assert_array_equal(found, whole * whole + whole)


@needs_engine
@pytest.mark.parametrize(("count", "bound"), [(1, 2e-2), (2, 1e-4), (3, 2e-6)])
def test_each_plane_adds_eight_bits(count, bound):
    w = normal(1, 256, 32) / 16
    x = normal(0, 32, 256)
    found = run(*matmul(x, w, count))
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert np.abs(found - exact).max() < bound
    assert np.abs(found - exact).max() > bound / 300


@needs_engine
def test_infinite_and_huge_operands_give_what_float32_gives():
    x, w = small(0, 40, 64), small(1, 64, 32)
    w[5] = 0.0
    x[0, 3], x[1, 5], x[2, 7], x[3, 9] = np.inf, np.inf, np.nan, -np.inf
    x[4, 11], x[5, 13], x[6, 15], x[7, 2] = 3.4e38, 1e-40, -0.0, 2.0**127
    w[11], w[2, :] = 0.5, 1.0
    op, arrays = matmul(x, w, 3)
    with np.errstate(all="ignore"):
        wanted = (x[:, :, None] * w).sum(axis=1, dtype=np.float64).astype(np.float32)
    np.testing.assert_allclose(run(op, arrays), wanted, rtol=1e-6)
    assert np.isinf(wanted).any()
    assert np.isnan(wanted[1]).all()


@needs_engine
def test_weights_may_be_infinite():
    x, w = small(0, 20, 32) + 5, small(1, 32, 32)
    w[3, 4], w[5, 6], w[7, 8] = np.inf, np.nan, -3.4e38
    with np.errstate(all="ignore"):
        wanted = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(run(*matmul(x, w, 3)), wanted, rtol=1e-6)


def test_tiles_that_a_target_lacks_lie_in_memory():
    text = """
    def f(A: f32[16], *, B: f32[16, 16], C: bf16[3, 16]):
        t = alloc(f32[16, 16], "tile")
        invoke("tile_zero_f32", t[0, 0])
        invoke("tile_store_f32", t[0, 0], B[0, 0])
        invoke("split_bf16_3_of_16", A[0], C[0, 0])
    """
    func = parse_func(text.replace("\n    ", "\n"))
    plain = replace(AVX2, features=AVX2.features - {"amx-tile", "amx-bf16", "amx-int8"})
    assert "llvm.x86" not in emit_func(func, plain)
    check(func, target=plain)


@needs_engine
@pytest.mark.parametrize("planes", [1, 2, 3])
@pytest.mark.parametrize(
    ("lanes", "name"), [(8, "cvtneps2bf16"), (16, "cvtneps2bf16"), (32, "cvtne2ps2bf16")]
)
def test_a_split_gives_planes(lanes, name, planes):
    func = parse_func(
        f"def f(A: f32[{lanes}], *, C: bf16[{planes}, {lanes}]):\n"
        f'    invoke("split_bf16_{planes}_of_{lanes}", A[0], C[0, 0])'
    )
    kernel = check(func, target=ENGINE, rtol=0)
    assert f"{name}." in kernel.ir


def test_planes_whose_loops_no_rule_knows_are_told(caplog):
    caplog.set_level(logging.INFO, "dlc.schedule")
    op, arrays = matmul(small(0, 2, 37, 64), small(1, 64, 80), 1)
    schedule_func(lowered(op, arrays), ENGINE, {})
    assert not caplog.records
    schedule_func(lowered(op, arrays), replace(ENGINE, features=ENGINE.features - {"amx-bf16"}), {})
    assert "no rule knows its loops" in caplog.text
