"""Windows that overlap, on a GPU: tiles of a thread, and that the kernels are right."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest

from dlc.codegen.cuda.emulate import EmulationError, Emulator
from dlc.graph.lower import lower_group
from dlc.graph.text import parse_graph
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func
from dlc.schedule.rules import finish_rest, gpu_own, gpu_window, prepare, rule_for
from dlc.schedule.trace import Trace
from tests.codegen.defects import WRONG, Defect, missed
from tests.codegen.gpu import GPU, Scheduled, check_emulated, emulate, schedule
from tests.schedule.data import inputs


def depthwise(
    size: int,
    *,
    stride: int = 1,
    rows: int | str = 5,
    columns: int | str = 7,
    dilation: int = 1,
    kind: str = "f32",
    lanes: int = 16,
    halo: int = 0,
) -> Func:
    """A depthwise convolution of two blocks of channels, a bias, a residual, and ReLU.

    `halo` are the pixels of zeros around the result.
    """
    open_sizes = [n for n in (rows, columns) if isinstance(n, str)]
    reach = (size - 1) * dilation

    def pixels(n: int | str) -> str:
        return (
            f"({n} - 1) * {stride} + {reach + 1}"
            if isinstance(n, str)
            else str((n - 1) * stride + reach + 1)
        )

    out = f"{kind}[1, 2, {rows}, {columns}, {lanes}]"
    whole = f"{kind}[1, 2, {rows} + {2 * halo}, {columns} + {2 * halo}, {lanes}]"
    ends = f"before=(0, 0, {halo}, {halo}, 0), after=(0, 0, {halo}, {halo}, 0)"
    last = f"    z: {whole} = pad(y, {ends}, value=0.0)\n    return z" if halo else "    return y"
    return lower_group(
        parse_graph(f"""
def main({"".join(f"{n}: size, " for n in open_sizes)}
         x: {kind}[1, 2, {pixels(rows)}, {pixels(columns)}, {lanes}],
         w: {kind}[2, {size}, {size}, {lanes}], b: {kind}[1, 2, 1, 1, {lanes}], s: {out}):
    c: {out} = conv_depthwise(x, w, stride=({stride}, {stride}), dilation=({dilation}, {dilation}))
    d: {out} = add(c, b)
    e: {out} = add(d, s)
    y: {out} = relu(e)
{last}
"""),
        "f",
    )


def with_tile(func: Func, symbol: str, tile: int) -> Scheduled:
    """A convolution whose threads have this tile."""
    trace = Trace(func)
    prepare(trace, GPU)
    assert rule_for(trace.func, GPU) is gpu_window
    found = gpu_window.match(trace.func, GPU)
    assert found is not None
    gpu_window.schedule(trace, found, GPU, {"tile": tile})
    finish_rest(trace, GPU)
    return schedule(func, symbol, trace.steps)


@pytest.fixture(scope="module")
def kernels() -> tuple[Emulator, Mapping[str, Scheduled]]:
    made = {
        f"{size} x {size}, stride {stride}, tile {tile}": with_tile(
            depthwise(size, stride=stride), f"k{size}_{stride}_{tile}", tile
        )
        for size, stride, tile in product((3, 5, 7), (1, 2), range(1, 1 + len(gpu_window.TILES)))
    }
    made["f16"] = with_tile(depthwise(3, kind="f16", halo=1), "f16", 3)
    made["f16, stride 2"] = with_tile(depthwise(5, kind="f16", stride=2), "f16s", 5)
    made["one pixel"] = with_tile(depthwise(3, rows=1, columns=1), "one", 6)
    made["few channels"] = with_tile(depthwise(3, rows=9, columns=5, lanes=3), "few", 4)
    made["halo"] = with_tile(depthwise(3, halo=1), "halo", 5)
    made["open"] = with_tile(depthwise(3, rows="h", columns="w"), "open", 5)
    return Emulator([k for s in made.values() for k in s.kernels]), made


def test_every_tile_of_a_thread_computes_the_same(
    kernels: tuple[Emulator, Mapping[str, Scheduled]],
) -> None:
    emulator, made = kernels
    for name, one in made.items():
        (kernel,) = one.kernels
        assert "_pixels" in kernel.text, name
        for rows, columns in ((4, 6), (1, 3), (0, 2)) if one.func.sizes else ((0, 0),):
            sizes = dict(zip(one.func.sizes, (rows, columns), strict=False))
            arrays = inputs(one.func, sizes)
            check_emulated(one, arrays, sizes, emulator=emulator, orders=("shuffled",))


def test_bytes_are_summed_up_by_threads() -> None:
    func = lower_group(
        parse_graph("""
def main(x: u8[1, 1, 9, 8, 32], w: i8[1, 3, 3, 32], b: i32[1, 1, 1, 1, 32]):
    c: i32[1, 1, 7, 6, 32] = conv_depthwise(x, w)
    y: i32[1, 1, 7, 6, 32] = add(c, b)
    return y
"""),
        "f",
    )
    check_emulated(with_tile(func, "k", 5), inputs(func, {}), {}, orders=("shuffled",))


@pytest.mark.parametrize(
    "func",
    [depthwise(3, dilation=2), depthwise(2, stride=2)],
    ids=["dilated", "windows that do not overlap"],
)
def test_what_shares_no_pixels_is_left_to_threads_of_one_result(func: Func) -> None:
    trace = Trace(func)
    prepare(trace, GPU)
    assert rule_for(trace.func, GPU) is gpu_own
    check_emulated(schedule(func, "k"), inputs(func, {}), {}, orders=("shuffled",))


@pytest.mark.parametrize(
    ("size", "stride", "rows", "tile"),
    [
        (3, 1, 7, (1, 1)),  # 3,136 results: too few for two threads of each processor's lanes
        (3, 1, 112, (4, 4)),
        (3, 2, 56, (2, 4)),
        (7, 1, 112, (2, 4)),  # 4 x 4 would keep 165 numbers in registers
        (7, 2, 112, (2, 2)),
    ],
)
def test_tiles_grow_with_the_image(
    size: int, stride: int, rows: int, tile: tuple[int, int]
) -> None:
    trace = Trace(depthwise(size, stride=stride, rows=rows, columns=rows, lanes=32))
    prepare(trace, GPU)
    found = gpu_window.match(trace.func, GPU)
    assert found is not None
    assert gpu_window.choose_tile(trace, found, GPU) == tile


def test_the_choice_is_one_launch_with_its_halo() -> None:
    func = depthwise(3, rows=33, columns=35, lanes=32, halo=1)
    (kernel,) = schedule(func, "k").kernels
    assert "_pixels, 9" not in kernel.text  # more than one result
    assert "_pixels, " in kernel.text


X, Y = "i0_4_i1_4_i2_5o_i3_4o_i4_5_t / 16 % 2", "i0_4_i1_4_i2_5o_i3_4o_i4_5_t / 32 % 3"
DEFECTS = {
    "pixels of the column beside": Defect(
        "k", "pixels_3 * 16 + i0", "pixels_3 * 16 + 16 + i0", f"out of bounds|{WRONG}"
    ),
    "pixels of the tile above": Defect("k", f"{Y} * 960", f"{Y} * 480", WRONG),
    "windows one apart where they are two": Defect(
        "k", "[i2_1 * 18 + i3 * 2 + r0", "[i2_1 * 18 + i3 + r0", WRONG
    ),
    "a window that ends early": Defect("k", "r1 = 0; r1 < 3", "r1 = 0; r1 < 2", WRONG),
    "weights of another block": Defect("k", "_t / 96 * 144]", "_t / 97 * 144]", WRONG),
    "pixels below the image": Defect("k", f"{Y} * 4 < 11", f"{Y} * 4 < 12", "out of bounds"),
    "no pixels of the last column": Defect("k", f"{X} * 8 < 15", f"{X} * 8 < 14", WRONG),
    "results behind the last row": Defect(
        "k", f"{Y} * 2 < 5", f"{Y} * 2 < 6", f"race|out of bounds|{WRONG}"
    ),
    "results beside the image": Defect(
        "k", f"{X} * 4 < 7", f"{X} * 4 < 8", f"race|out of bounds|{WRONG}"
    ),
    "a halo on the image": Defect(
        "k", "% 16 + 864] =", "% 16 + 720] =", f"race|out of bounds|{WRONG}"
    ),
}


def problem(emulator: Emulator, one: Scheduled, _: str) -> str:
    """What is wrong with a kernel, in any order; or ""."""
    arrays = inputs(one.func, {})
    want = run_func(one.func, {}, arrays)["out"]
    for order in ("forward", "shuffled"):
        try:
            got = emulate(emulator, one, arrays, {}, order)["out"]
        except EmulationError as error:
            return str(error)
        if not np.array_equal(got, want):
            return WRONG
    return ""


def test_every_defect_of_a_window_is_found() -> None:
    made = with_tile(depthwise(3, stride=2, halo=1), "k", 5)
    assert missed({"k": made}, DEFECTS, problem) == []
