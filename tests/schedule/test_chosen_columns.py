"""Columns that data chooses: which loops are outside, and the same results."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target import Target
from dlc.graph.lower import lower_group
from dlc.graph.text import parse_graph
from dlc.schedule.interpret import numpy_dtype, run_func
from dlc.schedule.loop import Func, LoopKind, loops
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import schedule_func

FLOATS = """
def main(t: size, x: f32[{tiles}, {rows}, 24], w: f32[5, 6, 24, 8], which: i64[{tiles}]):
    c: f32[{tiles}, 6, 24, 8] = gather(w, which, axis=0)
    y: f32[{tiles}, {rows}, 48] = matmul_packed(x, c, n=48)
    return y
"""
WORDS = """
def main(t: size, x: i8[{tiles}, {rows}, 32], f: f32[{tiles}, {rows}, 2],
         l: f32[{tiles}, {rows}, 2], w: u32[5, 6, 4, 8], s: f32[5, 6, 2, 8], which: i64[{tiles}]):
    c: u32[{tiles}, 6, 4, 8] = gather(w, which, axis=0)
    d: f32[{tiles}, 6, 2, 8] = gather(s, which, axis=0)
    y: f32[{tiles}, {rows}, 48] = matmul_bytes_few_bits(x, f, l, c, d, n=48, bits=4)
    return y
"""
FEW_BITS = """
def main(t: size, x: f32[{tiles}, {rows}, 32], w: u32[5, 6, 4, 8], s: f32[5, 6, 2, 8],
         which: i64[{tiles}]):
    c: u32[{tiles}, 6, 4, 8] = gather(w, which, axis=0)
    d: f32[{tiles}, 6, 2, 8] = gather(s, which, axis=0)
    y: f32[{tiles}, {rows}, 48] = matmul_few_bits(x, c, d, n=48, bits=4)
    return y
"""
VNNI = frozenset({"avx2", "fma", "avxvnni"})


def lowered(text: str, tiles: object, rows: int) -> Func:
    return lower_group(parse_graph(text.format(tiles=tiles, rows=rows)), "k")


def target(l2_bytes: int = 1 << 20) -> Target:
    return Target(features=VNNI, l2_bytes=l2_bytes, thread_operations=0)


@pytest.mark.thorough
@pytest.mark.parametrize("l2_bytes", [1 << 20, 4096, 1024])
@pytest.mark.parametrize(("tiles", "rows"), [(4, 1), ("t", 1), ("t", 4), (7, 4), (3, 6)])
@pytest.mark.parametrize("text", [FLOATS, WORDS, FEW_BITS], ids=["floats", "words", "few_bits"])
def test_the_result_is_that_of_plain_loops(
    text: str, tiles: object, rows: int, l2_bytes: int
) -> None:
    plain = lowered(text, tiles, rows)
    fast = optimize(plain, target(l2_bytes))
    rng = np.random.default_rng(rows)
    count = tiles if isinstance(tiles, int) else 6
    arrays = {}
    for buffer in plain.inputs:
        shape = [count if not hasattr(n, "value") else n.value for n in buffer.type.shape]
        dtype = numpy_dtype(buffer.type.dtype)
        low, high = (-5, 5) if dtype.kind != "u" else (0, 1 << 32)
        arrays[buffer.name] = rng.integers(low, high, shape).astype(dtype)
    want, got = (
        run_func(f, {"t": count} if f.sizes else {}, arrays)[f.outputs[0].name]
        for f in (plain, fast)
    )
    np.testing.assert_allclose(got, want, rtol=1e-6)


def outermost(text: str, tiles: object, rows: int, l2_bytes: int) -> str:
    """The loop that threads share: `i0` are the tiles, `i2` columns."""
    func = schedule_func(lowered(text, tiles, rows), target(l2_bytes), {}).func
    (found,) = (f.var for f in loops(func.body).values() if f.kind is LoopKind.PARALLEL)
    return found[:2]


@pytest.mark.parametrize("text", [FLOATS, WORDS, FEW_BITS], ids=["floats", "words", "few_bits"])
def test_tiles_pass_as_many_columns_of_their_matrix_as_the_cache_holds(text: str) -> None:
    assert outermost(text, "t", 4, 1 << 20) == "i0"  # all of them
    assert outermost(text, "t", 4, 1024) == "i2"


@pytest.mark.parametrize("text", [FLOATS, WORDS, FEW_BITS], ids=["floats", "words", "few_bits"])
@pytest.mark.parametrize("tiles", [4, "t"])
def test_single_rows_read_a_matrix_from_its_beginning_to_its_end(text: str, tiles: object) -> None:
    assert outermost(text, tiles, 1, 1024) == "i0"


def test_a_matrix_that_a_size_says_is_no_choice() -> None:
    text = FLOATS.replace("    c: f32[{tiles}, 6, 24, 8] = gather(w, which, axis=0)\n", "")
    text = text.replace("w: f32[5,", "w: f32[{tiles},").replace("(x, c, n", "(x, w, n")
    assert outermost(text, "t", 4, 1024) == "i0"
