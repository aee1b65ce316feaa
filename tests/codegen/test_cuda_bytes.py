"""Convolutions of bytes on GPUs: one launch on the matrix engine, from bytes to bytes."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.codegen.cuda.emulate import EmulationError, Emulator
from dlc.graph.evaluate import evaluate
from dlc.graph.graph import Graph
from dlc.graph.lower import lower_group
from dlc.graph.text import parse_graph
from tests.codegen.defects import WRONG, Defect, missed
from tests.codegen.gpu import Scheduled, emulate, schedule


def convolution_of_bytes(channels: int, height: int, stride: int = 1) -> Graph:
    """A quantized 3 x 3 convolution to 64 channels, which writes the halo of the next one.

    Its input has one already.
    """
    blocks, rows = channels // 32, (height - 3) // stride + 1
    out, wide = f"[1, 2, {rows}, {rows}, 32]", f"[1, 2, {rows + 1}, {rows + 1}, 32]"
    ends = "before=(0, 0, 0, 1, 0), after=(0, 0, 1, 0, 0), value=131.0"
    return parse_graph(f"""
def main(x: u8[1, {blocks}, {height}, {height}, 32], w: i8[2, {blocks}, 3, 3, 32, 32],
         b: i32[1, 2, 1, 1, 32], s: f32[()], z: f32[()]):
    c: i32{out} = conv_blocked(x, w, stride=({stride}, {stride}), turned=True)
    d: i32{out} = add(c, b)
    e: f32{out} = cast(d, to=f32)
    f: f32{out} = mul(e, s)
    g: f32{out} = round(f)
    h: f32{out} = add(g, z)
    i: u8{out} = cast(h, to=u8)
    y: u8{wide} = pad(i, {ends})
    return y
""")


def quantized(graph: Graph) -> dict[str, np.ndarray]:
    """Inputs over the whole ranges of bytes; few results are held in their range."""
    random = np.random.default_rng(5)
    shapes = {v.name: [int(n.value) for n in v.type.shape] for v in graph.inputs}
    return {
        "x": random.integers(0, 256, shapes["x"]).astype(np.uint8),
        "w": random.integers(-128, 128, shapes["w"]).astype(np.int8),
        "b": random.integers(-9999, 9999, shapes["b"]).astype(np.int32),
        "s": np.float32(2.0**-11),
        "z": np.float32(131),
    }


def problem(
    graph: Graph, made: Scheduled, emulator: Emulator, orders: tuple[str, ...] = ("shuffled",)
) -> str:
    """What is wrong with the kernel of a convolution; or ""."""
    arrays = quantized(graph)
    (want,) = evaluate(graph, arrays).values()
    assert len(np.unique(want)) > 10
    named = {b.name: a for b, a in zip(made.func.inputs, arrays.values(), strict=True)}
    for order in orders:
        try:
            got = emulate(emulator, made, named, {}, order)["out"]
        except EmulationError as error:
            return str(error)
        if not np.array_equal(got, want):
            return WRONG
    return ""


@pytest.mark.parametrize(
    ("channels", "height", "stride", "on_engine"),
    [(32, 7, 1, True), (64, 10, 2, True), (96, 9, 1, True), (96, 5, 1, False), (32, 3, 1, False)],
)
def test_a_convolution_of_bytes_is_one_launch(
    channels: int, height: int, stride: int, on_engine: bool
) -> None:
    graph = convolution_of_bytes(channels, height, stride)
    made = schedule(lower_group(graph, "f"), "k")
    (kernel,) = made.kernels
    emulator = Emulator(made.kernels)
    assert problem(graph, made, emulator) == ""
    assert kernel.text.count("multiply_bytes<") == on_engine  # few pixels fill no tile
    assert kernel.text.count("copy_async<16>") == 4 * on_engine
    if on_engine:
        loads, conflicts = emulator.conflicts()
        assert loads > 10
        assert conflicts == 0


DEFECTS = {
    "a chunk of three positions, of which two are multiplied": Defect(
        "conv", "r0_r1_r2_r3_s_o < 3", "r0_r1_r2_r3_s_o < 2", WRONG
    ),
    "weights of the summands before": Defect(
        "conv", "r0_r1_r2_r3_t * 7168, 112", "(r0_r1_r2_r3_t + 2) % 3 * 7168, 112",
        f"being copied|{WRONG}|race",
    ),
    "a halo of zeros": Defect("conv", "u8(131)", "u8(0)", WRONG, count=0),
    "a line of the halo of the block beside": Defect(
        "conv", " + 960] = u8(131)", " + 928] = u8(131)", f"race|{WRONG}"
    ),
    "channels that do not saturate": Defect("conv", "saturate<u8>(", "u8(0) + int(", WRONG),
    "a bias of the columns beside": Defect(
        "conv", "i1_7_i4_8_w / 2 * 32]", "(1 - i1_7_i4_8_w / 2) * 32]", WRONG
    ),
    "pixels behind the last": Defect(
        "conv", "+ i2_8_i3_7_d < 25", "+ i2_8_i3_7_d < 26", "race|out of"
    ),
}  # fmt: skip


def test_every_defect_of_a_convolution_is_found() -> None:
    graph = convolution_of_bytes(32, 7)
    made = schedule(lower_group(graph, "f"), "k")
    orders = ("shuffled", "forward")
    found = missed(
        {"conv": made}, DEFECTS, lambda emulator, one, _: problem(graph, one, emulator, orders)
    )
    assert found == []
