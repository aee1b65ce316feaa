"""use_pair_products keeps results, and chooses pairs only where there are any and they pay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.graph.evaluate import evaluate
from dlc.graph.ops.neighbours import in_rows
from dlc.graph.ops.pairs import pack_pairs
from dlc.graph.ops.pairs_planar import PlanarPairs
from dlc.graph.ops.shape import Pad
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import AVX512, ENGINE, PAIRS, read, run

NAMES = {"conv_pairs", "conv_planar_pairs", "matmul_pairs"}
MEDIUM = PassContext(target=Target(features=PAIRS), precision="medium")
CONV = """
def main(x: f32[1, 3, 16, 15, 16]):
    w: f32[5, 3, 3, 3, 16, 16] = const()
    y: f32[1, 5, 7, 13, 16] = conv_blocked(x, w, stride=(2, 1))
    return y
"""
MATMUL = """
def main(n: size, x: f32[n, 7, 48]):
    w: f32[3, 48, 16] = const()
    y: f32[n, 7, 40] = matmul_packed(x, w, n=40)
    z: f32[n, 7, 40] = matmul_packed(x, w, n=40)
    s: f32[n, 7, 40] = add(y, z)
    return s
"""
GROUPS = """
def main(x: f32[1, 6, 16, 15, 16]):
    w: f32[9, 2, 3, 3, 16, 16] = const()
    y: f32[1, 9, 7, 13, 16] = conv_blocked(x, w, stride=(2, 1), groups=3)
    return y
"""
ROW = """
def main(x: f32[1, 256]):
    w: f32[16, 256, 16] = const()
    y: f32[1, 256] = matmul_packed(x, w, n=256)
    return y
"""


PLANAR = """
def main(x: f32[1, 3, 19, 21]):
    w: f32[5, 3, 7, 7, 16] = const()
    a: f32[1, 3, 25, 27] = pad(x, before=(0, 0, 3, 3), after=(0, 0, 3, 3))
    y: f32[1, 5, 10, 11, 16] = conv_planar(a, w, stride=(2, 2))
    return y
"""
EVEN = PLANAR.replace("7, 7,", "7, 4,").replace("10, 11,", "10, 12,")


def operators(text, context=MEDIUM):
    return [node.op.name for node in run("use_pair_products", read(text), context).nodes]


@pytest.mark.parametrize("text", [CONV, GROUPS, MATMUL, ROW, PLANAR, EVEN])
def test_whole_numbers_keep_their_results(text):
    graph = read(text)
    graph = replace(graph, constants={v: np.rint(a) for v, a in graph.constants.items()})
    found = run("use_pair_products", graph, MEDIUM)
    assert {n.op.name for n in found.nodes} <= {"pad", "add", *NAMES}
    assert {n.op.name for n in found.nodes} & NAMES
    sizes = {name: 2 for name in graph.sizes}
    shape = [2 if str(n) == "n" else int(str(n)) for n in graph.inputs[0].type.shape]
    x = np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)
    wanted, got = (evaluate(g, {"x": x}, sizes) for g in (graph, found))
    for name, array in wanted.items():
        np.testing.assert_array_equal(got[name], array)


def test_equal_weights_are_packed_once():
    found = run("use_pair_products", read(MATMUL), MEDIUM)
    assert [n.op.name for n in found.nodes] == ["matmul_pairs", "matmul_pairs", "add"]
    assert found.nodes[0].inputs[1] == found.nodes[1].inputs[1]


def test_weights_are_rounded_to_the_nearest_even():
    w = np.array([[1 + 2.0**-8], [1 + 3 * 2.0**-8], [-0.0], [np.inf]], np.float32)
    packed = pack_pairs(w)
    assert packed.shape == (2, 1, 2)
    np.testing.assert_array_equal(in_rows(packed)[:, 0], [1, 1 + 2.0**-6, 0, np.inf])


@pytest.mark.parametrize("context", [
    replace(MEDIUM, precision="highest"), replace(MEDIUM, precision="high"),
    replace(MEDIUM, precision="tf32"), replace(AVX512, precision="medium"),
    PassContext(target=Target(features=ENGINE), precision="medium"),  # tiles are faster
    PassContext(target=Target(features=PAIRS, slow_pairs=True), precision="medium"),
])  # fmt: skip
def test_other_precisions_and_targets_change_nothing(context):
    graph = read(CONV)
    assert run("use_pair_products", graph, context) is graph


COMPUTED = """
def main(x: f32[128, 64], w: f32[4, 64, 16]):
    y: f32[128, 64] = matmul_packed(x, w, n=64)
    return y
"""
COLUMNS = """
def main(x: f32[128, {depth}]):
    w: f32[1, {depth}, {n}] = const()
    y: f32[128, {n}] = matmul_packed(x, w, n={n})
    return y
"""
CHANNELS = """
def main(x: f32[1, 3, 16, 15, 5]):
    w: f32[5, 3, 3, 3, 5, 16] = const()
    y: f32[1, 5, 14, 13, 16] = conv_blocked(x, w)
    return y
"""
STAYING = {
    "sparse": CONV.replace("(2, 1)", "(2, 1), sparse=True"),
    "turned": CONV.replace("(2, 1)", "(2, 1), turned=True"),
    "odd": CHANNELS,
    "dilated": PLANAR.replace("(2, 2)", "(2, 2), dilation=(1, 2)").replace("10, 11,", "10, 8,"),
    "pixels": PLANAR.replace("7, 7,", "1, 1,").replace("10, 11,", "13, 14,"),
    "depth": COLUMNS.format(depth=72, n=64),
    "columns": COLUMNS.format(depth=64, n=2),
    "double": ROW.replace("f32", "f64"),
    "vector": ROW.replace("x: f32[1, ", "x: f32[").replace("y: f32[1, ", "y: f32["),
    "computed": COMPUTED,
}


def test_as_many_columns_of_such_depth_gain():
    assert operators(COLUMNS.format(depth=64, n=64)) == ["matmul_pairs"]


@pytest.mark.parametrize("text", STAYING.values(), ids=STAYING)
def test_what_has_no_pairs_or_gains_nothing_stays(text):
    assert not any("pairs" in name for name in operators(text))


def pads(text):
    nodes = run("use_pair_products", read(text), MEDIUM).nodes
    return [n.op.after for n in nodes if isinstance(n.op, Pad)]


@pytest.mark.parametrize(("pixels", "made"), [(17, "conv_blocked"), (40, "conv_pairs")])
def test_few_taps_that_read_pixels_are_fewer_products(pixels, made):
    """Of taps 12 pixels apart, 0.28 and 0.64; pairs are of all taps."""
    text = f"""
def main(x: f32[1, 16, {pixels + 24}, {pixels + 24}, 16]):
    w: f32[16, 16, 3, 3, 16, 16] = const()
    y: f32[1, 16, {pixels}, {pixels}, 16] = conv_blocked(x, w, dilation=(12, 12),
        zeros=(12, 12, 12, 12))
    return y
"""
    assert operators(text) == [made]


def test_an_image_has_one_column_more_where_a_kernel_of_an_odd_width_reaches_it():
    """Of 27 columns, a kernel of 7 that moves by 2 reads all; one of 8 has one result less."""
    assert [str(n) for n in pads(PLANAR)[-1]] == ["0", "0", "3", "4"]
    even = PLANAR.replace("19, 21]", "19, 22]").replace("25, 27]", "25, 28]")
    assert len(pads(even)) == 1
    assert len(pads(EVEN)) == 1


def test_an_image_that_nobody_pads_is_copied():
    lines = [line for line in PLANAR.splitlines() if "pad(" not in line]
    text = "\n".join(lines).replace("x: f32[1, 3, 19, 21]", "a: f32[1, 3, 25, 27]")
    assert [[str(n) for n in after] for after in pads(text)] == [["0", "0", "0", "1"]]


def test_an_image_of_an_open_width_may_need_its_column():
    text = PLANAR.replace("(x: f32[1, 3, 19, 21]", "(v: size, x: f32[1, 3, 19, v]")
    text = text.replace("25, 27]", "25, v + 6]").replace("10, 11,", "10, (v - 1) // 2 + 1,")
    assert str(pads(text)[-1][-1]) == "4"


@pytest.mark.parametrize(("dtype", "made"), [("u8", "cast(i, to=f32)"), ("f32", "relu(i)")])
def test_images_of_whole_numbers_need_no_second_look(dtype, made):
    text = PLANAR.replace("x: f32[", f"i: {dtype}[").replace(
        "    a: f32", f"    x: f32[1, 3, 19, 21] = {made}\n    a: f32"
    )
    op = run("use_pair_products", read(text), MEDIUM).nodes[-1].op
    assert isinstance(op, PlanarPairs)
    assert op.is_finite == (dtype == "u8")


def test_weights_that_round_to_infinity_need_a_second_look():
    text = PLANAR.replace("x: f32[", "i: u8[").replace(
        "    a: f32", "    x: f32[1, 3, 19, 21] = cast(i, to=f32)\n    a: f32"
    )
    graph = read(text)
    for largest, is_finite in ((3.2e38, True), (3.4e38, False)):
        weights = {v: np.full_like(a, largest) for v, a in graph.constants.items()}
        op = run("use_pair_products", replace(graph, constants=weights), MEDIUM).nodes[-1].op
        assert isinstance(op, PlanarPairs)
        assert op.is_finite is is_finite


def test_the_column_more_of_a_mirrored_image_is_zeros():
    """One more of what is mirrored would be another image."""
    text = PLANAR.replace("after=(0, 0, 3, 3))", "after=(0, 0, 3, 3), mode='reflect')")
    assert [[str(n) for n in after] for after in pads(text)] == [list("0033"), list("0001")]
