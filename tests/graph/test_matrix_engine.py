"""use_matrix_engine keeps results, and chooses the engine only where it pays."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from dlc.core.fork import Choices, Fork, Way
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.core.types import DType
from dlc.graph.engine_products import Product, vector_cycles
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.planes import pack_tiles, plane_pairs, split_planes, unpack_tiles
from dlc.graph.ops.planes_matmul import MatMulSplit
from dlc.graph.ops.scan import Scan
from dlc.graph.pass_ import PassContext
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.rules.strip import Shape
from dlc.te.expr import index
from tests.graph.pass_cases import ENGINE, VNNI, read, rounded, run, same_of_whole_numbers

TARGET = Target(features=ENGINE, l2_bytes=8 << 20)
CONV = """
def main(x: f32[1, 3, 16, 14, 16]):
    w: f32[5, 3, 3, 2, 16, 16] = const()
    y: f32[1, 5, 14, 13, 16] = conv_blocked(x, w)
    return y
"""
DEEP = """
def main(x: f32[1, 128, 2080]):
    w: f32[12, 2080, 16] = const()
    y: f32[1, 128, 192] = matmul_packed(x, w, n=192)
    z: f32[1, 128, 192] = relu(y)
    return z
"""


BYTES = """
def main(x: u8[128, 512]):
    w: f32[32, 512, 16] = const()
    a: f32[128, 512] = cast(x, to=f32)
    y: f32[128, 512] = matmul_packed(a, w, n=512)
    return y
"""


def operators(graph):
    return [node.op.name for node in graph.nodes]


def check(text, context, *, whole=True):
    graph = read(text)
    graph = rounded(graph) if whole else graph  # which are exact in one plane
    found = run("use_matrix_engine", graph, context)
    same_of_whole_numbers(graph, found)
    return found


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_a_convolution_keeps_its_results(precision):
    text = CONV.replace("3, 2, 16,", "3, 1, 16,").replace("14, 13, 16]", "14, 14, 16]")
    context = PassContext(target=TARGET, precision=precision)
    found = check(text, context, whole=precision == "medium")  # a column has no transform
    assert operators(found) == ["conv_planes"]


@pytest.mark.parametrize(("features", "cycles", "weights", "chosen"), [
    (ENGINE | VNNI, 23, 127, "matmul_planes"),
    (ENGINE | VNNI, 80, 127, "matmul_packed"),  # use_byte_products takes them
    (ENGINE | VNNI, 80, 128, "matmul_planes"),  # no bytes
    (ENGINE | VNNI | {"amx-int8"}, 23, 127, "matmul_packed"),  # tiles of bytes are twice as fast
    (ENGINE | VNNI | {"amx-int8"}, 23, 128, "matmul_planes"),
    (ENGINE, 80, 127, "matmul_planes"),
])  # fmt: skip
def test_bytes_are_left_to_what_multiplies_bytes_where_it_is_faster(
    features, cycles, weights, chosen
):
    graph = read(BYTES)
    (w,) = graph.constants
    values = np.random.default_rng(0).integers(-weights, weights + 1, (32, 512, 16))
    values[0, 0] = weights
    graph = replace(graph, constants={w: values.astype(np.float32)})
    target = replace(TARGET, features=features, tile_cycles=cycles)
    found = run("use_matrix_engine", graph, PassContext(target=target))
    assert operators(found)[-1] == chosen
    same_of_whole_numbers(graph, found)


TRANSFORMED = """
def main(x: f32[1, 16, 30, 30, 16]):
    w: f32[16, 16, 3, 3, 16, 16] = const()
    y: f32[1, 16, 28, 28, 16] = conv_blocked(x, w)
    return y
"""


@pytest.mark.parametrize(
    ("text", "precision", "chosen"),
    [
        (TRANSFORMED, "highest", "conv_blocked"),
        (TRANSFORMED, "high", "conv_planes"),
        (TRANSFORMED.replace("16, 28, 28", "16, 14, 14").replace("w)", "w, stride=(2, 2))"),
         "highest", "conv_planes"),
        (TRANSFORMED.replace("30, 30", "30, 29").replace("3, 3, 16,", "3, 2, 16,"),
         "highest", "conv_planes"),
    ],
    ids=["transformed", "fewer_products_of_planes", "stride", "kernel"],
)  # fmt: skip
def test_what_is_faster_between_transforms_is_left_to_them(text, precision, chosen):
    context = PassContext(target=replace(TARGET, l2_bytes=2 << 20), precision=precision)
    found = run("use_matrix_engine", read(text), context)
    assert operators(found) == [chosen]
    transformed = operators(run("use_winograd", found, context)) == ["conv_winograd"]
    assert transformed == (chosen == "conv_blocked")


def test_what_transforms_gain_too_little_at_is_not_left_to_them():
    """They take less time than the engine, and more than use_winograd allows."""
    text = TRANSFORMED.replace("16, 30, 30", "2, 27, 27").replace("16, 28, 28", "2, 25, 25")
    target = replace(TARGET, l2_bytes=2 << 20, cores=8)
    graph = read(text.replace("16, 16, 3", "2, 2, 3"))
    assert operators(run("use_matrix_engine", graph, PassContext(target=target))) == ["conv_planes"]


def test_what_takes_about_as_long_is_multiplied_by_the_engine():
    """Transforms, of which there are estimates alone for such machines, have to gain a tenth."""
    text = TRANSFORMED.replace("16, 30, 30", "2, 29, 29").replace("16, 28, 28", "8, 27, 27")
    graph = read(text.replace("16, 16, 3", "8, 2, 3"))
    context = PassContext(target=parse_target("llvm -mcpu=sapphirerapids"))
    assert operators(run("use_winograd", graph, context)) == ["conv_winograd"]
    assert operators(run("use_matrix_engine", graph, context)) == ["conv_planes"]


def test_transforms_of_whole_numbers_are_no_rivals():
    text = TRANSFORMED.replace("main(x: f32", "main(words: i16").replace(
        "    w:", "    x: f32[1, 16, 30, 30, 16] = cast(words, to=f32)\n    w:")  # fmt: skip
    graph = rounded(read(text))
    wide = replace(graph, constants={v: a * 4097 for v, a in graph.constants.items()})
    context = PassContext(target=replace(TARGET, l2_bytes=2 << 20))
    assert operators(run("use_matrix_engine", wide, context))[1] == "conv_planes"
    half = replace(graph, constants={v: a * 0.4097 for v, a in graph.constants.items()})
    assert operators(run("use_matrix_engine", half, context))[1] == "conv_blocked"


def test_an_image_of_few_channels_is_packed_along_its_lines():
    planar = """
def main(x: f32[1, 3, 17, 22]):
    w: f32[5, 3, 7, 7, 16] = const()
    y: f32[1, 5, 6, 8, 16] = conv_planar(x, w, stride=(2, 2))
    return y
"""
    context = PassContext(target=TARGET, precision="medium")
    assert operators(check(planar, context, whole=True)) == ["conv_planar_planes"]
    narrow = planar.replace("17, 22", "17, 21")  # an eighth pixel at the last result is not there
    assert operators(run("use_matrix_engine", read(narrow), context)) == ["conv_planar"]


@pytest.mark.parametrize("dtype", ["u8", "i8", "i16"])
def test_whole_numbers_have_one_plane(dtype):
    image = CONV.replace("f32[1, 3", f"{dtype}[1, 3").replace(
        "x, w)", "x_f32, w)").replace(
        "    w:", "    x_f32: f32[1, 3, 16, 14, 16] = cast(x, to=f32)\n    w:")  # fmt: skip
    found = check(image, PassContext(target=TARGET))
    (node,) = [n for n in found.nodes if n.op.name == "conv_planes"]
    planes = node.op.planes, node.inputs[1].type.static_shape[-4]
    assert planes == (3 if dtype == "i16" else 1, 1)


def test_a_deep_product_is_cut_into_parts_that_stay_in_the_cache():
    whole = check(DEEP, PassContext(target=TARGET))
    assert operators(whole) == ["matmul_planes", "relu"]
    cut = check(DEEP, PassContext(target=replace(TARGET, l2_bytes=1 << 20)))
    assert operators(cut).count("matmul_planes") > 1
    assert operators(cut)[-2:] == ["add", "relu"]


def test_a_product_that_nearly_stays_in_the_cache_is_not_cut():
    """Partial sums, written and read again, would cost more than what falls out of the cache."""
    text = """
def main(x: f32[197, 192]):
    w: f32[10, 192, 16] = const()
    y: f32[197, 160] = matmul_packed(x, w, n=160)
    return y
"""
    context = PassContext(target=replace(TARGET, l2_bytes=424 << 10))
    whole = run("use_matrix_engine", read(text), context)
    assert operators(whole) == ["matmul_planes"]


STEPS = """
def main(t: size, h: f32[1, 256], x: f32[t, 1, 256]):
    def step(h: f32[1, 256], x: f32[1, 256]):
        w: f32[16, 256, 16] = const()
        p: f32[1, 256] = matmul_packed(h, w, n=256)
        n: f32[1, 256] = sub(x, p)
        return n, n
    y: f32[1, 256]
    all: f32[t, 1, 256]
    y, all = scan(h, x, body=step, carries=1)
    return y, all
"""


@pytest.mark.parametrize(
    ("precision", "l2_bytes", "chosen"),
    [
        ("medium", 256 << 10, "matmul_planes"),
        ("medium", 255 << 10, "matmul_packed"),  # the columns are more than half of the cache
        ("high", 1 << 20, "matmul_packed"),
    ],
)
def test_an_only_row_uses_the_engine_in_a_loop_that_keeps_its_columns(precision, l2_bytes, chosen):
    graph = read(STEPS)
    context = PassContext(target=replace(TARGET, l2_bytes=l2_bytes), precision=precision)
    found = run("use_matrix_engine", graph, context)
    scan = found.nodes[0].op
    assert isinstance(scan, Scan)
    assert operators(scan.body) == [chosen, "sub"]


def test_an_only_row_alone_waits_for_its_columns():
    text = """
def main(x: f32[1, 256]):
    w: f32[16, 256, 16] = const()
    y: f32[1, 256] = matmul_packed(x, w, n=256)
    return y
"""
    found = run("use_matrix_engine", read(text), PassContext(target=TARGET, precision="medium"))
    assert operators(found) == ["matmul_packed"]


OPEN = """
def main(batch: size, seq: size, x: f32[batch, seq, 384]):
    w: f32[96, 384, 16] = const()
    y: f32[batch, seq, 1536] = matmul_packed(x, w, n=1536)
    return y
"""


@pytest.mark.parametrize(
    ("precision", "chosen"),
    [("highest", "matmul_split"), ("high", "matmul_planes"), ("medium", "matmul_planes")],
)
def test_planes_of_columns_for_open_rows_are_kept_where_they_are_no_more_bytes(precision, chosen):
    graph = rounded(read(OPEN)) if precision == "medium" else read(OPEN)
    found = run("use_matrix_engine", graph, PassContext(target=TARGET, precision=precision))
    assert operators(found) == [chosen]
    same_of_whole_numbers(graph, found, (2, 5, 384))


def test_a_run_of_few_rows_multiplies_and_adds():
    """From as many rows on as the engine takes less time for, of which it computes 32 at least."""
    found = run("use_matrix_engine", read(OPEN), PassContext(target=TARGET))
    (node,) = found.nodes
    assert isinstance(node.op, MatMulSplit)
    op: MatMulSplit = node.op
    assert op.may_be_slower
    slower = op.is_slower(node.output.type)
    few = [n for n in range(1, 200) if evaluate_size(slower, {"batch": 9, "seq": n})]
    assert few == list(range(1, op.fewest))
    assert 32 < op.fewest < 96
    assert op.direct == MatMulPacked(n=index(1536))
    assert not replace(op, fewest=0).may_be_slower


def test_multiply_adds_of_open_rows_are_slower_than_of_known_ones():
    shape = Shape(1, 128, 1, 1, 0, 97, 12, 12, 6, 3, 2304, constant=False)
    dense = np.zeros((384, 384), np.float32)
    known = Product(MatMulSplit(n=index(384)), shape, dense, planes=3, summands=384)
    context = PassContext(target=TARGET)
    cycles = [vector_cycles(replace(known, is_fixed=fixed), context) for fixed in (True, False)]
    assert cycles[1] / cycles[0] == pytest.approx(0.8 / 0.7)


def test_each_matrix_of_a_batch_has_as_few_rows():
    known = OPEN.replace("batch: size, ", "")
    fewest = set()
    for batch in ("1", "8"):
        graph = read(known.replace("batch", batch))
        (node,) = run("use_matrix_engine", graph, PassContext(target=TARGET)).nodes
        fewest.add(node.op)
    assert len(fewest) == 1


@pytest.mark.parametrize("turned", [False, True])
def test_known_and_open_rows_share_weights_and_have_operands_of_their_own(turned):
    first = "    y: f32[b, s, 1536] = matmul_packed(x, w, n=1536)\n"
    second = "    z: f32[b, 200, 1536] = matmul_packed(v, w, n=1536)\n"
    text = "\ndef main(b: size, s: size, x: f32[b, s, 384], v: f32[b, 200, 384]):\n"
    text += "    w: f32[96, 384, 16] = const()\n"
    text += (second + first if turned else first + second) + "    return y, z\n"
    found = run("use_matrix_engine", read(text), PassContext(target=TARGET))
    chosen = {n.op.name: n.inputs[1].type.dtype for n in found.nodes}
    assert chosen == {"matmul_split": DType.F32, "matmul_planes": DType.BF16}


def test_open_rows_that_are_exact_in_one_plane_keep_multiply_adds():
    text = OPEN.replace("x: f32[batch, seq, 384]", "i: i8[batch, seq, 384]")
    text = text.replace("    y:", '    x: f32[batch, seq, 384] = cast(i, to="f32")\n    y:')
    found = run("use_matrix_engine", read(text), PassContext(target=TARGET))
    assert operators(found) == ["cast", "matmul_packed"]


def test_open_rows_of_three_planes_need_pairs_of_panels():
    text = OPEN.replace("1536", "1520").replace("[96,", "[95,")
    found = run("use_matrix_engine", read(text), PassContext(target=TARGET))
    assert operators(found) == ["matmul_packed"]


@pytest.mark.parametrize(
    ("precision", "chosen"), [("highest", "matmul_split"), ("high", "matmul_planes")]
)
def test_deep_products_of_open_rows_are_cut(precision, chosen):
    """The planes of a strip of whole rows would fill the cache."""
    text = OPEN.replace("384", "3072").replace("1536", "768").replace("[96,", "[48,")
    context = PassContext(target=replace(TARGET, l2_bytes=2 << 20), precision=precision)
    graph = read(text)
    found = run("use_matrix_engine", graph, context)
    products = [n.op for n in found.nodes if n.op.name == chosen]
    assert len(products) > 1
    assert len(set(products)) == 1
    assert operators(found).count("add") == len(products) - 1
    same_of_whole_numbers(graph, found, (1, 3, 3072))


IMAGE = """
def main(n: size, high: size, wide: size, x: f32[n, 6, high + 2, wide + 2, 16]):
    w: f32[6, 6, 3, 3, 16, 16] = const()
    y: f32[n, 6, high, wide, 16] = conv_blocked(x, w)
    return y
"""


@pytest.mark.parametrize(
    ("precision", "sizes", "chosen"),
    [
        ("highest", "n, high, wide", "conv_blocked"),
        ("high", "n, high, wide", "conv_planes"),
        ("medium", "n, high, wide", "conv_planes"),
        ("high", "n, 40, 30", "conv_planes"),
        ("medium", "n, 40, 30", "conv_planes"),
    ],
)
def test_images_of_open_sizes_use_the_engine(precision, sizes, chosen):
    high, wide = sizes.split(", ")[1:]
    text = IMAGE.replace("high + 2", f"{high} + 2").replace("wide + 2", f"{wide} + 2")
    text = text.replace("6, high, wide", f"6, {high}, {wide}")
    graph = rounded(read(text)) if precision == "medium" else read(text)
    found = run("use_matrix_engine", graph, PassContext(target=TARGET, precision=precision))
    assert operators(found) == [chosen]
    shape = (2, 6, 42, 32, 16) if high == "40" else (2, 6, 5, 37, 16)
    same_of_whole_numbers(graph, found, shape)


@pytest.mark.parametrize(
    ("blocks", "columns", "chosen"),
    [(1, 3, "conv_blocked"), (2, 4, "conv_planes"), (3, 1, "conv_planes"), (1, 1, "conv_blocked")],
)
def test_short_sums_of_images_of_open_sizes_use_the_engine_where_it_pays(blocks, columns, chosen):
    text = f"""
def main(high: size, wide: size, x: f32[1, {blocks}, high, wide, 16]):
    w: f32[{columns}, {blocks}, 1, 1, 16, 16] = const()
    y: f32[1, {columns}, high, wide, 16] = conv_blocked(x, w)
    return y
"""
    graph = rounded(read(text))
    found = run("use_matrix_engine", graph, PassContext(target=TARGET, precision="medium"))
    assert operators(found) == [chosen]
    same_of_whole_numbers(graph, found, (1, blocks, 3, 33, 16))


@pytest.mark.parametrize(
    "text",
    [
        CONV.replace("f32[", "f64["),
        CONV.replace("14, 16]):", "14, 8]):").replace("16, 16]", "8, 16]"),
        CONV.replace("f32[5, 3", "f32[1, 3").replace("f32[1, 5, 14", "f32[1, 1, 14"),
        DEEP.replace("1, 128", "1, 1"),
        DEEP.replace("1, 128", "1, 3"),
    ],
    ids=["f64", "blocks_of_8", "one_block", "a_row", "few_rows"],
)
def test_what_does_not_fit_or_pay_stays(text):
    graph = read(text)
    assert operators(run("use_matrix_engine", graph, PassContext(target=TARGET))) == operators(
        graph
    )


def test_channels_that_only_fill_rows_do_not_count():
    few = """
def main(x: f32[1, 1, 56, 56, 16]):
    w: f32[6, 1, 1, 1, 16, 16] = const()
    y: f32[1, 6, 56, 56, 16] = conv_blocked(x, w)
    return y
"""
    context = PassContext(target=TARGET, precision="high")
    assert operators(run("use_matrix_engine", read(few), context)) == ["conv_blocked"]
    full = few.replace("f32[1, 1, 56", "f32[1, 2, 56").replace("f32[6, 1, 1", "f32[6, 2, 1")
    assert operators(run("use_matrix_engine", read(full), context)) == ["conv_planes"]


def test_a_block_of_columns_alone_uses_the_engine_with_one_plane():
    text = CONV.replace("f32[5, 3", "f32[1, 3").replace("f32[1, 5, 14", "f32[1, 1, 14")
    found = check(text, PassContext(target=TARGET, precision="medium"))
    assert operators(found) == ["conv_planes"]
    assert found.nodes[0].inputs[1].type.static_shape[:2] == (2, 2)  # the second block is zeros


@pytest.mark.parametrize(
    ("cycles", "precision", "chosen"),
    [
        (23, "highest", "matmul_planes"),
        (60, "highest", "matmul_packed"),
        (60, "medium", "matmul_planes"),
    ],
)
def test_an_engine_that_is_slow_is_used_where_it_pays(cycles, precision, chosen):
    text = DEEP.replace("2080", "768").replace("192", "768").replace("f32[12,", "f32[48,")
    context = PassContext(target=replace(TARGET, tile_cycles=cycles), precision=precision)
    assert operators(run("use_matrix_engine", read(text), context)) == [chosen, "relu"]


def test_without_the_feature_nothing_changes():
    graph = read(CONV)
    plain = PassContext(target=replace(TARGET, features=ENGINE - {"amx-bf16"}))
    assert run("use_matrix_engine", graph, plain) is graph


def test_planes_add_up():
    w = np.random.default_rng(0).standard_normal((40, 2, 50)).astype(np.float32)
    w[0, 0, :4] = 0.0, 3.4e38, -3.4028235e38, 2.0**-100
    packed = pack_tiles(w, 3)
    found = unpack_tiles(packed)
    np.testing.assert_array_equal(found[:40, :, :50].astype(np.float32), w)
    assert not found[40:].any()
    assert not found[..., 50:].any()


@pytest.mark.parametrize("planes", list(product((1, 2, 3), repeat=2)))
def test_each_pair_of_planes_has_one_of_the_pair_before(planes):
    pairs = plane_pairs(*planes)
    reach = max(planes)
    every = {(a, b) for a in range(planes[0]) for b in range(planes[1]) if a + b < reach}
    assert set(pairs) == every
    assert len(pairs) == len(every)
    assert all(a == c or b == d for (a, b), (c, d) in pairwise(pairs))
    assert [b for _, b in pairs] == sorted(b for _, b in pairs)  # as they come from memory


def test_planes_of_what_is_not_finite_are_that_and_zeros():
    found = split_planes(np.array([np.inf, -np.inf, np.nan], np.float32), 3)
    assert found[0].tolist() == [0x7F80, 0xFF80, 0x7FC0]
    assert not found[1:].any()


def test_the_engine_is_a_decision_whose_other_side_keeps_results():
    """Deep products are cut as on the default's side; each fact that the ways depend on tells."""
    found: list[Fork] = []
    flat = DEEP.replace("128, 2080]", "3, 192]").replace("2080, 16", "192, 16")
    flat = flat.replace("128, 192]", "3, 192]")
    near = replace(TARGET, l2_bytes=1 << 20)
    for text, target, precision in (
        (CONV, TARGET, "highest"),
        (DEEP, near, "highest"),
        (flat, TARGET, "highest"),
        (CONV, TARGET, "medium"),
    ):
        context = PassContext(target=target, precision=precision, on_fork=found.append)
        whole = precision == "medium"
        default = operators(check(text, context, whole=whole))
        fork = found[-1]
        assert fork.options == ("vectors", "matrix")
        assert (fork.default == "matrix") == any("planes" in name for name in default)
        assert min(fork.cycles) > 0
        ways = Choices({fork.key: Way(fork.others[0], fork.default)})
        other = check(text, replace(context, on_fork=None, choices=ways), whole=whole)
        assert operators(other) != default
    assert {f.default for f in found} == {"matrix", "vectors"}
    check(CONV, PassContext(target=TARGET, on_fork=found.append))  # whole numbers: fewer planes
    assert len({f.key for f in found}) == len(found)
