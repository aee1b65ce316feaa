"""use_winograd transforms kernels of two taps, and those in steps of two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.fork import Fork
from dlc.graph.ops.winograd import ConvWinograd
from tests.graph.pass_cases import read, run, same_of_whole_numbers
from tests.graph.test_winograd import HIGH, LARGE, LINE, changed, tiles


@pytest.mark.parametrize(("channels", "tile"), [(8, (3,)), (2, (3,)), (1, None)])
def test_kernels_of_two_have_three_results_where_sums_are_long_enough(channels, tile):
    text = LINE.replace("[8, 8, 3,", f"[32, {channels}, 2,").replace("402", "401")
    text = text.replace("x: f32[1, 8", f"x: f32[1, {channels}").replace(
        "y: f32[1, 8", "y: f32[1, 32"
    )
    graph, found = read(text), changed(text)
    assert tiles(found) == ([tile] if tile else [])
    same_of_whole_numbers(graph, found)


@pytest.mark.parametrize(
    ("kernel", "tile"),
    [((2, 2), (3, 3)), ((2, 3), (3, 4)), ((3, 2), (4, 3)), ((2, 5), (3, 4)), ((5, 2), (4, 3))],
)
def test_kernels_of_two_along_an_axis_have_three_results_along_it(kernel, tile):
    sizes = ", ".join(str(47 + k) for k in kernel)
    text = LARGE.replace("58, 58", sizes).replace("56, 56", "48, 48")
    text = text.replace("3, 3,", f"{kernel[0]}, {kernel[1]},").replace("[4, 4,", "[4, 8,")
    graph = read(text.replace("x: f32[1, 4", "x: f32[1, 8"))
    found = run("use_winograd", graph, HIGH)
    assert tiles(found) == [tile]
    same_of_whole_numbers(graph, found)


@pytest.mark.parametrize(
    ("kernel", "options"),
    [("2, 2", ["3 by 3", "3"]), ("2, 3", ["3 by 2", "3 by 4", "2", "4"]),
     ("3, 2", ["2 by 3", "4 by 3"]),
     ("3, 3", ["2 by 2", "2 by 4", "4 by 4"]),
     ("4, 3", ["2 by 2", "2 by 4", "4 by 4", "3 by 2", "3 by 4"]),
     ("2, 4", ["3 by 3", "3 by 2", "3 by 4", "2", "4", "3"])],
)  # fmt: skip
def test_a_tuner_is_asked_about_the_tiles_of_a_kernel(kernel, options):
    found: list[Fork] = []
    sizes = ", ".join(str(55 + int(k)) for k in kernel.split(", "))
    text = LARGE.replace("58, 58", sizes).replace("3, 3,", f"{kernel},")
    run("use_winograd", read(text), replace(HIGH, on_fork=found.append))
    assert found[0].options == ("direct", *(f"tiles of {each}" for each in options))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kernel", "stride", "tile"),
    [((4, 4), (2, 2), (3, 3)), ((5, 5), (2, 2), (2, 2)),
     ((4, 4), (2, 1), (3, 3)), ((3, 4), (1, 2), (4, 3)), ((6, 6), (2, 2), None),
     ((3, 3), (3, 3), None)],
)  # fmt: skip
def test_steps_of_two_have_transforms_of_both_phases(kernel, stride, tile):
    sizes = ", ".join(str(47 * s + k) for k, s in zip(kernel, stride, strict=True))
    text = LARGE.replace("58, 58", sizes).replace("56, 56", "48, 48").replace("[4, 4,", "[8, 8,")
    text = text.replace("3, 3,", f"{kernel[0]}, {kernel[1]},").replace("f32[1, 4", "f32[1, 8")
    graph = read(text.replace("(x, w)", f"(x, w, stride={stride})"))
    found = run("use_winograd", graph, HIGH)
    assert tiles(found) == ([tile] if tile else [])
    same_of_whole_numbers(graph, found)


@pytest.mark.parametrize(("kernel", "tile"), [(3, None), (4, (3,)), (5, (2,))])
def test_lines_in_steps_of_two_are_transformed_where_much_is_saved(kernel, tile):
    """Two of nine products are not."""
    text = LINE.replace("stride=(1,)", "stride=(2,)").replace("402", f"{798 + kernel}")
    graph = read(text.replace("8, 8, 3,", f"8, 8, {kernel},"))
    found = run("use_winograd", graph, HIGH)
    assert tiles(found) == ([tile] if tile else [])
    same_of_whole_numbers(graph, found)


def test_weights_of_two_steps_are_transformed_for_each():
    text = LARGE.replace("[4, 4, 3, 3,", "[8, 8, 4, 4,").replace("f32[1, 4", "f32[1, 8")
    text = text.replace("58, 58", "51, 51").replace("56, 56", "48, 48")
    text = text.replace("def main(", "def main(z: f32[1, 8, 98, 98, 16], ").replace(
        "    return y",
        "    v: f32[1, 8, 48, 48, 16] = conv_blocked(z, w, stride=(2, 2))\n    return y, v",
    )
    found = run("use_winograd", read(text), HIGH)
    assert tiles(found) == [(3, 3), (3, 3)]
    steps = [n.op.steps for n in found.nodes if isinstance(n.op, ConvWinograd)]
    assert steps == [(), (2, 2)]
    assert [n.inputs[1].type.static_shape[0] for n in found.nodes] == [6, 8]


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "rows", "tile"),
    [(128, (3, 3), (2, 1), 2, (4,)), (48, (3, 3), (2, 1), 32, (4,)), (16, (2, 3), (1, 1), 32, (2,)),
     (128, (2, 5), (1, 1), 2, (4,)), (1024, (3, 3), (2, 1), 8, (4,)),
     (128, (1, 3), (1, 1), 32, (4,))],
)  # fmt: skip
def test_lines_are_transformed_alone_where_that_is_faster_or_alone_possible(
    channels, kernel, stride, rows, tile
):
    """Columns in steps may have too many weights, and images too few rows, or too few channels."""
    (high, wide), step, blocks = kernel, stride[0], channels // 16
    text = f"""
def main(x: f32[1, {blocks}, {(rows - 1) * step + high}, {399 + wide}, 16]):
    w: f32[{max(8, blocks)}, {blocks}, {high}, {wide}, 16, 16] = const()
    y: f32[1, {max(8, blocks)}, {rows}, 400, 16] = conv_blocked(x, w, stride={stride})
    return y
"""
    assert tiles(changed(text)) == [tile]
