"""use_winograd keeps results, and transforms only where it pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.fork import Fork
from dlc.core.target import Gpu, Target
from dlc.graph.edit import GraphEditor
from dlc.graph.evaluate import evaluate
from dlc.graph.fusion import groups
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.winograd import ConvWinograd, TiledConv
from dlc.graph.pass_ import PassContext
from dlc.graph.transformed import least_cycles, transformed_cycles
from dlc.schedule.interpret import evaluate_size
from dlc.te.types import TensorType
from tests.graph.pass_cases import read, rounded, run, same_of_whole_numbers

TARGET = Target(features=frozenset({"avx512f"}))
CONV = """
def main(x: f32[1, 4, 16, 18, 16]):
    w: f32[4, 4, 3, 3, 16, 16] = const()
    y: f32[1, 4, 14, 16, 16] = conv_blocked(x, w)
    return y
"""


HIGH = PassContext(target=TARGET, precision="high")
PAIRS = PassContext(
    target=replace(TARGET, features=TARGET.features | {"avx512bf16"}), precision="medium"
)


def operators(graph):
    return [node.op.name for node in graph.nodes]


def changed(text, target=TARGET):
    return run("use_winograd", read(text), PassContext(target=target))


def tiles(graph):
    return [node.op.out for node in graph.nodes if isinstance(node.op, TiledConv)]


def test_a_convolution_keeps_its_results():
    graph, found = read(CONV), changed(CONV)
    assert operators(found) == ["conv_winograd"]
    same_of_whole_numbers(graph, found)


def test_open_sizes_are_taken_for_large_ones():
    text = CONV.replace("16, 18, 16]", "h + 2, v + 2, 16]").replace("14, 16, 16]", "h, v, 16]")
    assert operators(changed(text.replace("(x:", "(h: size, v: size, x:"))) == ["conv_winograd"]


SMALL = """
def main({0}: size, x: f32[1, 16, {1} + 2, {1} + 2, 16]):
    w: f32[16, 16, 3, 3, 16, 16] = const()
    y: f32[1, 16, {1}, {1}, 16] = conv_blocked(x, w)
    return y
"""


def small(size):
    """A convolution whose weights are far, of an image of some size; "s" in it is open."""
    return SMALL.format("s", size).replace("s: size, ", "" if "s" not in str(size) else "s: size, ")


LINE = """
def main(x: f32[1, 8, 402, 16]):
    w: f32[8, 8, 3, 16, 16] = const()
    y: f32[1, 8, 400, 16] = conv_blocked(x, w, stride=(1,), dilation=(1,))
    return y
"""


def open_line(blocks=8):
    """The convolution of a line of open length, of some blocks of channels."""
    text = LINE.replace("402", "n + 2").replace("400", "n").replace("(x:", "(n: size, x:")
    return text.replace("[8, 8,", f"[{blocks}, {blocks},").replace("[1, 8,", f"[1, {blocks},")


@pytest.mark.parametrize(("size", "found"), [(4, []), (5, [(2, 2)]), (28, [(4, 4)])])
def test_weights_of_small_images_come_beside_products(size, found):
    text = small(size).replace(f"{size} + 2", f"{size + 2}")
    assert tiles(changed(text)) == found


@pytest.mark.parametrize(
    ("bounds", "assumed"), [("1, 28", 28), ("448, None", 448), ("1, 999", 224), ("", 224)]
)
def test_an_open_image_is_taken_for_one_within_its_bounds(bounds, assumed):
    text = small("s").replace("size", f"size[{bounds}]" if bounds else "size")
    fixed = small(assumed).replace(f"{assumed} + 2", f"{assumed + 2}")
    assert asked(text).cycles[0] == asked(fixed).cycles[0]


def test_a_layer_of_an_open_image_is_as_small_as_its_strides_make_it():
    fixed, halved = asked(small(7).replace("7 + 2", "9")), asked(small("(s + 31) // 32"))
    assert halved.cycles[0] == fixed.cycles[0] < asked(small("s")).cycles[0]
    assert halved.cycles[1:] == pytest.approx(fixed.cycles[1:], rel=0.2)
    assert asked(small("(s - 300)")).cycles[0] == asked(small(64).replace("64 + 2", "66")).cycles[0]


@pytest.mark.parametrize(
    ("text", "chooses"),
    [
        (small("s"), True),
        (small(7).replace("7 + 2", "9"), False),
        (small("s").replace("s + 2, s + 2", "9, 9").replace("16, s, s,", "16, 7, 7,")
         .replace("f32[1, 16, 9", "f32[s, 16, 9").replace("f32[1, 16, 7", "f32[s, 16, 7"), False),
        (small("s").replace("[16, 16, 3", "[7, 7, 3").replace("[1, 16,", "[1, 7,"), False),
        (open_line(8), True),
        (open_line(6), False),
    ],
    ids=["open", "fixed", "many_images", "few_channels", "line", "line_of_few_channels"],
)  # fmt: skip
def test_a_run_chooses_where_images_are_open_and_small_ones_lose_much(text, chooses):
    (node,) = changed(text).nodes
    assert node.op.name == "conv_winograd"
    assert bool(node.op.cycles) == chooses


def test_a_run_compares_what_one_of_several_images_takes():
    counts = ("1", "3", "b")
    texts = [
        small("s").replace("f32[1,", f"f32[{n},").replace("(s:", "(b: size, s:") for n in counts
    ]
    one, *others = (node.op.cycles for text in texts for node in changed(text).nodes)
    assert others == [one, one]
    volume = VOLUME.replace("(x:", "(s: size, x:").replace("16, 18,", "s + 2, s + 2,")
    volume = volume.replace("14, 16,", "s, s,").replace("[4, 4, 2", "[8, 8, 2")
    volume = volume.replace("f32[1, 4, 9", "f32[1, 8, 9").replace("f32[1, 4, 4", "f32[1, 8, 4")
    fewer = volume.replace("8, 9, s", "8, 5, s").replace("8, 4, s", "8, 2, s")
    four, two = (node.op.cycles for text in (volume, fewer) for node in changed(text).nodes)
    assert four == pytest.approx(two, rel=0.1)


def test_larger_images_are_transformed():
    (node,) = changed(small("s")).nodes
    slower = node.op.is_slower(node.output.type)
    assert [n for n in range(1, 60) if evaluate_size(slower, {"s": n})] == [1, 2, 3, 4, 5, 6, 7, 9]
    assert node.op.direct == ConvBlocked()


@pytest.mark.parametrize("wide", ["s", "14"])
def test_how_many_cores_there_are_says_nothing_about_small_images(wide):
    """An image that leaves some of them idle is estimated by itself, for images of any size."""
    text = small("s").replace("s + 2, s + 2", f"s + 2, {wide} + 2").replace("s, s,", f"s, {wide},")
    one, *others = (
        node.op.cycles for n in (1, 2, 8) for node in changed(text, replace(TARGET, cores=n)).nodes
    )
    assert one
    assert others == [one, one]


def test_open_images_have_larger_tiles_than_known_ones_where_it_is_close():
    """Weights come while others are multiplied, and an image may be larger than assumed."""
    (fixed,), (open_,) = (changed(small(t)).nodes for t in (14, "(s + 15) // 16"))
    assert (fixed.op.out, open_.op.out) == ((2, 4), (4, 4))


@pytest.mark.parametrize("sizes", [(3, 2, 7, 5, 6, 8), (1, 2, 1, 3, 4, 8)])
def test_a_run_counts_tiles_of_all_images(sizes):
    op = ConvWinograd(out=(2, 2), stride=(1,), dilation=(1,), cycles=(3, 4, 50), used=5)
    n, _, d, h, w, _ = sizes
    tiles = n * d * ((h + 1) // 2) * ((w + 1) // 2)
    slower = op.is_slower(TensorType(sizes))
    assert evaluate_size(slower, {}) == (3 * n * d * h * w < 4 * tiles + 50)
    assert op.direct == ConvBlocked(stride=(1, 1, 1), dilation=(1, 1, 1), used=5)


VOLUME = """
def main(x: f32[1, 4, 9, 16, 18, 16]):
    w: f32[4, 4, 2, 3, 3, 16, 16] = const()
    y: f32[1, 4, 4, 14, 16, 16] = conv_blocked(x, w, stride=(2, 1, 1), dilation=(2, 1, 1))
    return y
"""


def test_volumes_add_up_images_that_are_transformed_once():
    graph, found = read(VOLUME), changed(VOLUME)
    (node,) = found.nodes
    assert (node.op.name, node.op.stride, node.op.dilation) == ("conv_winograd", (2,), (2,))
    assert node.op.direct == graph.nodes[0].op
    same_of_whole_numbers(graph, found)


@pytest.mark.parametrize(("taps", "tile"), [(1, (2, 2)), (2, (2, 4))])
def test_a_volume_is_as_accurate_as_its_whole_sum(taps, tile):
    """Thirty-two channels are too few for larger tiles, twice as many products are not."""
    text = f"""
def main(x: f32[1, 2, {7 + taps}, 58, 58, 16]):
    w: f32[4, 2, {taps}, 3, 3, 16, 16] = const()
    y: f32[1, 4, 8, 56, 56, 16] = conv_blocked(x, w, stride=(1, 1, 1), dilation=(1, 1, 1))
    return y
"""
    assert tiles(changed(text)) == [tile]


@pytest.mark.parametrize(
    "text",
    [
        VOLUME.replace("stride=(2, 1, 1)", "stride=(1, 3, 1)")
        .replace("[1, 4, 4, 14,", "[1, 4, 7, 5,"),
        VOLUME.replace("dilation=(2, 1, 1)", "dilation=(1, 1, 2)")
        .replace("[1, 4, 4, 14, 16,", "[1, 4, 4, 14, 14,"),
        VOLUME.replace("4, 2, 3, 3,", "4, 3, 3, 1,").replace("(2, 1, 1)", "(1, 1, 1)")
        .replace("[1, 4, 4, 14, 16,", "[1, 4, 7, 14, 18,"),
        VOLUME.replace("f32[1, 4, 9, ", "f32[1, 4, 1, 9, ").replace("4, 2, 3, 3", "4, 1, 2, 3, 3")
        .replace("[1, 4, 4, 14", "[1, 4, 1, 4, 14").replace("(2, 1, 1)", "(1, 2, 1, 1)"),
    ],
    ids=["stride", "dilation", "kernel", "four_axes"],
)  # fmt: skip
def test_volumes_that_have_no_transform_stay(text):
    assert operators(changed(text)) == ["conv_blocked"]


@pytest.mark.parametrize(
    "text",
    [
        CONV.replace("f32[", "f64["),
        CONV.replace("3, 3, 16, 16]", "3, 1, 16, 16]").replace("14, 16, 16]", "14, 18, 16]"),
        CONV.replace("(x, w)", "(x, w, stride=(1, 3))").replace("14, 16, 16]", "14, 6, 16]"),
        CONV.replace("(x, w)", "(x, w, stride=(2, 2))").replace("14, 16, 16]", "7, 8, 16]"),
        CONV.replace("(x, w)", "(x, w, dilation=(1, 2))").replace("14, 16, 16]", "14, 14, 16]"),
        CONV.replace("[4, 4, 3", "[4, 2, 3").replace("(x, w)", "(x, w, groups=2)"),
        CONV.replace("[4, 4, 3", "[1, 1, 3")
        .replace("[1, 4, 1", "[1, 1, 1")
        .replace("16, 18, 16]", "5, 6, 16]")
        .replace("14, 16, 16]", "3, 4, 16]"),
        CONV.replace("16, 18, 16]", "3, 3, 16]").replace("14, 16, 16]", "1, 1, 16]"),
        CONV.replace("f32[1, 4", "f32[0, 4"),
    ],
    ids=["f64", "kernel", "stride", "small", "dilation", "groups", "few", "one_pixel", "empty"],
)
def test_what_does_not_fit_or_pay_stays(text):
    assert operators(changed(text)) == ["conv_blocked"]


LINES = """
def main(x: f32[1, 8, 22, 42, 16]):
    w: f32[8, 8, 2, 3, 16, 16] = const()
    y: f32[1, 8, 10, 40, 16] = conv_blocked(x, w, stride=(2, 1), dilation=(3, 1))
    return y
"""


@pytest.mark.parametrize(
    ("text", "channels", "tile"),
    [(LINE, 8, 4), (LINE, 3, 2), (LINES, 8, 4), (LINES, 2, 4)],
    ids=["line", "few_channels", "lines", "few_channels_of_two_lines"],
)
def test_lines_are_transformed_alone(text, channels, tile):
    text = text.replace("[8, 8,", f"[8, {channels},").replace(
        "x: f32[1, 8", f"x: f32[1, {channels}"
    )
    graph, found = read(text), changed(text)
    assert tiles(found) == [(tile,)]
    same_of_whole_numbers(graph, found)


@pytest.mark.parametrize(
    "text",
    [
        LINE.replace("stride=(1,)", "stride=(2,)").replace("[1, 8, 400", "[1, 8, 200"),
        LINE.replace("dilation=(1,)", "dilation=(2,)").replace("[1, 8, 400", "[1, 8, 398"),
        LINE.replace("8, 3, 16", "8, 1, 16").replace("[1, 8, 400", "[1, 8, 402"),
        LINE.replace("402", "4").replace("400", "2"),
        LINES.replace("f32[1, 8, 22", "f32[1, 8, 1, 22").replace("8, 2, 3", "8, 1, 2, 3")
        .replace("(2, 1)", "(1, 2, 1)").replace("(3, 1)", "(1, 3, 1)")
        .replace("f32[1, 8, 10", "f32[1, 8, 1, 10"),
    ],
    ids=["stride", "dilation", "pixel", "short", "two_other_axes"],
)  # fmt: skip
def test_lines_that_have_no_transform_stay(text):
    assert operators(changed(text)) == ["conv_blocked"]


@pytest.mark.parametrize(
    ("kernel", "tile"), [(4, 3), (5, 4), (7, 3), (8, 3), (9, 4), (11, 4), (16, 3)]
)
def test_a_larger_kernel_is_a_sum_of_those_that_need_fewer_zeros(kernel, tile):
    text = LINE.replace("8, 8, 3,", f"8, 8, {kernel},").replace("402", f"{399 + kernel}")
    graph, found = read(text), changed(text)
    assert tiles(found) == [(tile,)]
    same_of_whole_numbers(graph, found)
    direct, transformed = found.nodes[0].inputs[2], found.nodes[0].inputs[1]
    assert direct.type.shape == graph.nodes[0].inputs[1].type.shape
    parts = () if kernel == 4 else (-(-kernel // (7 - tile)),)
    assert transformed.type.static_shape == (6, 8, 8, *parts, 16, 16)


@pytest.mark.parametrize(("kernel", "tile"), [(5, (4, 4)), (7, (3, 3)), (4, (3, 3))])
def test_an_image_has_kernels_of_parts_along_both_axes(kernel, tile):
    text = LARGE.replace("58, 58", f"{55 + kernel}, {55 + kernel}").replace(
        "3, 3,", f"{kernel}, {kernel},")  # fmt: skip
    assert tiles(run("use_winograd", read(text), HIGH)) == [tile]


@pytest.mark.parametrize(("kernel", "results"), [(5, [2, 4]), (7, [2, 4, 3]), (12, [2, 4])])
def test_tiles_of_three_results_are_asked_about_where_they_save_zeros(kernel, results):
    text = LINE.replace("8, 8, 3,", f"8, 8, {kernel},").replace("402", f"{399 + kernel}")
    assert asked(text).options == ("direct", *(f"tiles of {n}" for n in results))


@pytest.mark.parametrize("kernel", ["1, 3", "3, 3"])
def test_an_open_height_is_estimated_for_the_plan_that_a_schedule_has(kernel):
    """That of 224 rows, a few of which are taken at a time."""
    most = 2 if kernel == "3, 3" else 0
    fixed = f"""
def main(x: f32[1, 8, {224 + most}, 42, 16]):
    w: f32[8, 8, {kernel}, 16, 16] = const()
    y: f32[1, 8, 224, 40, 16] = conv_blocked(x, w)
    return y
"""
    opened = fixed.replace("(x:", "(h: size, x:").replace(" 224, 40,", " h, 40,")
    opened = opened.replace(f"{224 + most}, 42", f"h + {most}, 42" if most else "h, 42")
    (direct, *known), (same, *estimated) = asked(fixed).cycles, asked(opened).cycles
    assert direct == same
    assert all(a <= b < 2 * a for a, b in zip(known, estimated, strict=True))
    assert (known[-1] < estimated[-1]) == (kernel == "1, 3"), "four rows of an image are enough"


def test_an_engine_is_held_against_transforms_of_images_of_known_size():
    def least(text):
        editor, context = GraphEditor(read(text)), PassContext(target=TARGET)
        (node,) = editor.graph.nodes
        return least_cycles(editor, node, context), transformed_cycles(node, context)

    found, estimates = least(CONV)
    assert found == min(estimates.values())
    for text in (
        small("s"),
        open_line(),
        small(4).replace("4 + 2", "6"),
        CONV.replace("f32", "f64"),
    ):
        assert least(text)[0] is None
    assert least(small("s"))[1], "it has estimates, for a size that others do not assume"


def asked(text):
    """What a tuner is asked about the only convolution."""
    found: list[Fork] = []
    run("use_winograd", read(text), replace(PassContext(target=TARGET), on_fork=found.append))
    return found[0]


@pytest.mark.thorough
def test_weights_do_not_grow_beyond_memory():
    text = LINE.replace("8, 8, 3,", "64, 64, 4,").replace("f32[1, 8,", "f32[1, 64,")
    text = text.replace("402", "403")
    assert tiles(changed(text)) == [(3,)]  # 25 MB of weights
    many = text.replace("[64, 64,", "[192, 64,").replace("y: f32[1, 64,", "y: f32[1, 192,")
    assert tiles(changed(many)) == [(3,)]  # 75 MB, of no parts
    of_parts = many.replace("64, 4,", "64, 7,").replace("403", "406")
    assert operators(changed(of_parts)) == ["conv_blocked"]  # 151 MB
    in_steps = many.replace("403", "802").replace("stride=(1,)", "stride=(2,)")
    assert operators(changed(in_steps)) == ["conv_blocked"]  # 101 MB
    few = in_steps.replace("[192, 64,", "[64, 64,").replace("y: f32[1, 192,", "y: f32[1, 64,")
    assert tiles(changed(few)) == [(3,)]


def test_a_line_of_an_open_length_is_taken_for_a_long_one():
    assert tiles(changed(open_line())) == [(4,)]


def test_sums_of_whole_numbers_stay_exact():
    text = CONV.replace("x: f32[", "bytes: i8[").replace(
        "    w:", "    x: f32[1, 4, 16, 18, 16] = cast(bytes, to=f32)\n    w:")  # fmt: skip
    context = PassContext(target=TARGET)
    assert operators(run("use_winograd", rounded(read(text)), context)) == ["cast", "conv_blocked"]
    assert operators(changed(text)) == ["cast", "conv_winograd"], "weights are no whole numbers"


LARGE = CONV.replace("16, 18, 16]", "58, 58, 16]").replace("14, 16, 16]", "56, 56, 16]")


@pytest.mark.parametrize(
    ("context", "tile"),
    [
        (PassContext(target=TARGET), (2, 4)),
        (HIGH, (4, 4)),
        (replace(HIGH, precision="tf32"), (4, 4)),
        (PAIRS, (4, 4)),
    ],
    ids=["highest", "high", "tf32", "medium"],
)
def test_tiles_are_as_large_as_the_precision_allows(context, tile):
    assert tiles(run("use_winograd", read(LARGE), context)) == [tile]


def test_an_image_that_is_no_larger_than_a_tile_has_smaller_ones():
    """The number of the tile would be 0 everywhere, and nobody could tell tiles apart."""
    text = CONV.replace("16, 18, 16]", "5, 58, 16]").replace("14, 16, 16]", "3, 56, 16]")
    assert tiles(run("use_winograd", read(text), HIGH)) in ([(2, 2)], [(2, 4)])


def test_pairs_of_bf16_keep_what_they_are_faster_at():
    text = CONV.replace("16, 18, 16]", "9, 9, 16]").replace("14, 16, 16]", "7, 7, 16]")
    text = text.replace("[1, 4,", "[1, 32,").replace("[4, 4, 3", "[32, 32, 3")
    assert operators(run("use_winograd", read(text), replace(PAIRS, precision="highest"))) == [
        "conv_winograd"
    ]
    assert operators(run("use_winograd", read(text), PAIRS)) == ["conv_blocked"]


def test_weights_have_to_be_known():
    text = CONV.replace("16]):", "16], w: f32[4, 4, 3, 3, 16, 16]):", 1)
    lines = [line for line in text.splitlines() if "const()" not in line]
    assert operators(changed("\n".join(lines))) == ["conv_blocked"]


@pytest.mark.parametrize(
    "target", [Target(features=frozenset({"avx2"})), replace(TARGET, gpu=Gpu())]
)
def test_other_blocks_and_gpus_are_left_alone(target):
    assert operators(changed(CONV, target)) == ["conv_blocked"]


def test_weights_are_transformed_once_for_all_readers():
    text = CONV.replace(
        "    return y", "    z: f32[1, 4, 14, 16, 16] = conv_blocked(x, w)\n    return y, z"
    )
    found = changed(text)
    assert operators(found) == ["conv_winograd"] * 2
    assert len(found.constants) == 2


def test_weights_of_two_sizes_of_tiles_are_transformed_for_each():
    text = LARGE.replace("def main(", "def main(z: f32[1, 4, 58, 5, 16], ").replace(
        "    return y", "    v: f32[1, 4, 56, 3, 16] = conv_blocked(z, w)\n    return y, v"
    )
    found = run("use_winograd", read(text), HIGH)
    assert sorted(tiles(found)) == [(2, 2), (4, 4)]
    assert len({node.inputs[1] for node in found.nodes}) == 2


BYTES = """
def main(x: u8[1, 8, 30, 32, 8]):
    w: i8[8, 8, 3, 3, 4, 8, 2] = const()
    a: i16[1, 8, 30, 32, 8] = cast(x, to=i16)
    y: i32[1, 8, 28, 30, 8] = conv_bytes(a, w)
    return y
"""
AVX2 = Target(features=frozenset({"avx2", "fma"}))


def extreme(graph, dtype="u1"):
    """The graph with bytes as weights, the largest often, and an image of bytes."""
    rng = np.random.default_rng(0)
    constants = {
        v: rng.choice([-128, -127, 0, 3, 127], a.shape).astype(a.dtype)
        for v, a in graph.constants.items()
    }
    limits, shape = np.iinfo(dtype), graph.inputs[0].type.static_shape
    x = rng.choice([limits.min, limits.min + 1, 0, 77, limits.max], shape).astype(dtype)
    return replace(graph, constants=constants), {"x": x}


@pytest.mark.parametrize(("dtype", "name"), [("u1", "u8"), ("i1", "i8")])
@pytest.mark.parametrize(("text", "tile"), [
    (BYTES, (4, 4)),
    (BYTES.replace("30, 32", "9, 9").replace("28, 30", "7, 7").replace("8, 8, 3", "32, 32, 3")
     .replace("[1, 8, ", "[1, 32, "), (4, 4)),
    (BYTES.replace("30, 32", "3, 30, 32").replace("28, 30", "2, 28, 30")
     .replace("8, 8, 3, 3", "8, 8, 2, 3, 3").replace("(a, w)", "(a, w, stride=(1, 1, 1))")
     .replace("1))", "1), dilation=(1, 1, 1))"), (4, 4)),
    (BYTES.replace("30, 32", "402").replace("28, 30", "400").replace("8, 8, 3, 3", "8, 8, 3")
     .replace("(a, w)", "(a, w, stride=(1,), dilation=(1,))"), (4,)),
], ids=["image", "deep", "volume", "line"])  # fmt: skip
def test_sums_of_bytes_are_the_same(text, tile, dtype, name):
    graph, given = extreme(read(text.replace("u8[", f"{name}[")), dtype)
    found = run("use_winograd", graph, PassContext(target=AVX2))
    assert operators(found) == ["cast", "conv_winograd_bytes"]
    assert tiles(found) == [tile]
    np.testing.assert_array_equal(evaluate(found, given)["y"], evaluate(graph, given)["y"])


@pytest.mark.parametrize("text", [
    BYTES.replace("(a, w)", "(a, w, stride=(1, 2))").replace("28, 30, 8]", "28, 15, 8]"),
    BYTES.replace("(a, w)", "(a, w, dilation=(1, 2))").replace("28, 30, 8]", "28, 28, 8]"),
    BYTES.replace("8, 8, 3, 3", "8, 8, 3, 5").replace("28, 30, 8]", "28, 28, 8]"),
    BYTES.replace("i16[1, 8", "u8[1, 8").replace("to=i16", "to=u8").replace("4, 8, 2]", "2, 8, 4]"),
    BYTES.replace("x: u8", "x: i32"),
    BYTES.replace("x: u8[1, 8, 30", "w: i8[8, 8, 3, 3, 4, 8, 2], x: u8[1, 8, 30")
    .replace("    w: i8[8, 8, 3, 3, 4, 8, 2] = const()\n", ""),
    BYTES.replace("30, 32", "3, 3").replace("28, 30", "1, 1"),
    BYTES.replace("8, 8, 3, 3", "8, 4, 3, 3").replace("(a, w)", "(a, w, groups=2)"),
], ids=["stride", "dilation", "kernel", "four", "words", "given", "pixel", "groups"])  # fmt: skip
def test_products_of_bytes_that_have_no_transform_stay(text):
    found = run("use_winograd", read(text), PassContext(target=AVX2))
    assert operators(found) == ["cast", "conv_bytes"]


@pytest.mark.parametrize(
    ("blocks", "weight", "pixel", "tile"),
    [(64, 28, 255, (4, 4)), (64, 29, 255, (2, 4)), (64, -114, 255, (2, 4)),
     (64, -115, 255, (2, 2)), (300, 127, 255, None), (64, 1, 327, (4, 4)), (64, 1, 328, (2, 4)),
     (64, 1, 1638, (2, 4)), (64, 1, 1639, (2, 2)), (64, 1, 8191, (2, 2)), (64, 1, 8192, None)],
)  # fmt: skip
def test_what_may_not_fit_has_smaller_tiles(blocks, weight, pixel, tile):
    """Sums are as large as weights make them, and pixels as the value of a pad."""
    text = f"""
def main(x: u8[1, {blocks}, 28, 30, 8]):
    w: i8[1, {blocks}, 3, 3, 4, 8, 2] = const()
    a: i16[1, {blocks}, 28, 30, 8] = cast(x, to=i16)
    p: i16[1, {blocks}, 30, 32, 8] = pad(a, before=(0, 0, 1, 1, 0), after=(0, 0, 1, 1, 0), \
value={pixel}.0)
    y: i32[1, 1, 28, 30, 8] = conv_bytes(p, w)
    return y
"""
    graph = read(text)
    same = {v: np.full_like(a, weight) for v, a in graph.constants.items()}
    found: list[Fork] = []
    context = replace(PassContext(target=AVX2), on_fork=found.append)
    run("use_winograd", replace(graph, constants=same), context)
    options = found[0].options if found else ()
    assert (f"tiles of {tile[0]} by {tile[1]}" if tile else None) == max(options[1:], default=None)


def test_a_transpose_stays_apart():
    text = CONV.replace(
        "    return y",
        "    z: f32[1, 14, 16, 4, 16] = transpose(y, perm=(0, 2, 3, 1, 4))\n    return z",
    )
    assert [len(g) for g in groups(read(text))] == [2]
    assert [len(g) for g in groups(changed(text))] == [1, 1]
