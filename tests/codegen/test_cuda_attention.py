"""Attention on the matrix engines of a GPU: what they take, and that the kernels are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from dlc.codegen.cuda.emulate import EmulationError, Emulator
from dlc.graph.lower import lower_group
from dlc.graph.text import parse_graph
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func
from dlc.schedule.pipeline import optimize
from dlc.schedule.round_products import round_products
from dlc.schedule.rules import gpu_attend, prepare
from dlc.schedule.trace import Trace
from tests.codegen.defects import WRONG, Defect, missed
from tests.codegen.gpu import GPU, Scheduled, check_emulated, emulate, schedule
from tests.schedule.data import inputs

ENGINE = ("multiply_tf32<", "multiply_tiles<")


def attention(
    kind: str = "f32",
    *,
    heads: int = 2,
    rows: int | str,
    keys: int | str,
    size: int,
    masked: bool = True,
    guarded: bool = False,
) -> Func:
    """Queries, keys and values by head, and perhaps a mask. Lengths may be size variables.

    Guarded weights are 0 where they are NaN.
    """
    text = attention_text(kind, heads, rows, keys, size, masked=masked, guarded=guarded)
    graph = parse_graph(text)
    return lower_group(graph, "f")


def attention_text(
    kind: str,
    heads: int,
    rows: int | str,
    keys: int | str,
    size: int,
    *,
    masked: bool,
    guarded: bool = False,
) -> str:
    """The graph of an attention."""

    def shape(a: int | str, b: int | str) -> str:
        return f"{kind}[1, {heads}, {a}, {b}]"

    mask = f", d: {kind}[1, 1, {rows}, {keys}]" if masked else ""
    add = f"    m: {shape(rows, keys)} = add(s, d)\n" if masked else ""
    guard = f"    w: {shape(rows, keys)} = nan_to_zero(u)\n" if guarded else ""
    open_sizes = dict.fromkeys(n for n in (rows, keys) if isinstance(n, str))
    return f"""
def main(
    {"".join(f"{n}: size, " for n in open_sizes)}
    a: {kind}[1, {rows}, {heads}, {size}], b: {kind}[1, {keys}, {heads}, {size}],
    c: {kind}[1, {keys}, {heads}, {size}]{mask}
):
    q: {shape(rows, size)} = transpose(a, perm=(0, 2, 1, 3))
    p: {shape(size, keys)} = transpose(b, perm=(0, 2, 3, 1))
    v: {shape(keys, size)} = transpose(c, perm=(0, 2, 1, 3))
    s: {shape(rows, keys)} = matmul(q, p)
{add}    {"u" if guarded else "w"}: {shape(rows, keys)} = softmax({"m" if masked else "s"}, axis=3)
{guard}    o: {shape(rows, size)} = matmul(w, v)
    r: {kind}[1, {rows}, {heads}, {size}] = transpose(o, perm=(0, 2, 1, 3))
    return r
"""


def rounded(precision: str, **sizes: Any) -> Func:
    """Attention of float32 whose products are rounded."""
    return round_products(attention(**sizes), GPU, precision)


def data(func: Func, sizes: Mapping[str, int] | None = None) -> dict[str, np.ndarray]:
    """Numbers small enough that many keys count, and a mask that leaves every third one out."""
    found = {n: (a / 4).astype(a.dtype) for n, a in inputs(func, dict(sizes or {})).items()}
    if "in3" in found:
        found["in3"][..., ::3] = -np.inf
    return found


CASES = {
    "tf32": lambda: rounded("tf32", rows=37, keys=48, size=40),
    "tf32, two tiles of rows": lambda: rounded("tf32", heads=1, rows=35, keys=72, size=32),
    "tf32, tails everywhere": lambda: rounded("tf32", heads=1, rows=37, keys=45, size=35),
    "high": lambda: rounded("high", rows=19, keys=48, size=32),
    "medium": lambda: rounded("medium", heads=1, rows=16, keys=80, size=32),
    "f16": lambda: attention("f16", rows=21, keys=48, size=32),
    "f16, keys that fill no chunk": lambda: attention("f16", heads=1, rows=17, keys=70, size=32),
    "bf16, no mask": lambda: attention("bf16", heads=1, rows=35, keys=64, size=48, masked=False),
}


def with_rows(func: Func, symbol: str, rows: int) -> Scheduled:
    """An attention with so many rows in a block."""
    trace = Trace(func)
    prepare(trace, GPU)
    attend = gpu_attend.match(trace.func, GPU)
    assert attend is not None
    gpu_attend.schedule(trace, attend, GPU, {"rows": rows})
    return schedule(func, symbol, trace.steps)


def test_engines_multiply_both_products_of_an_attention() -> None:
    made = {
        name: with_rows(make(), f"k{n}", 32 if "two" in name else 16)
        for n, (name, make) in enumerate(CASES.items())
    }
    emulator = Emulator([k for s in made.values() for k in s.kernels])
    for name, one in made.items():
        (kernel,) = one.kernels
        wanted = [2, 0] if "tf32" in name else [0, 2]
        assert [kernel.text.count(n) for n in ENGINE] == wanted, name
        # A weight beside a tie is rounded either way, by how its row was summed up.
        check_emulated(one, data(one.func), {}, emulator=emulator, rtol=1e-2, orders=("shuffled",))
    loads, conflicts = emulator.conflicts()
    assert loads > 1000
    assert conflicts == 0


def test_a_scheduled_attention_means_what_its_loops_mean() -> None:
    func = rounded("tf32", rows=18, keys=40, size=32)
    arrays = data(func)
    got, want = (run_func(f, {}, arrays)["out"] for f in (optimize(func, GPU), func))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    exact = run_func(attention(rows=18, keys=40, size=32), {}, arrays)["out"]
    assert 0 < np.abs(want - exact).max() < 1e-2


def found(func: Func) -> gpu_attend.BlockAttention | None:
    trace = Trace(func)
    prepare(trace, GPU)
    return gpu_attend.match(trace.func, GPU)


@pytest.mark.parametrize(
    "sizes",
    [
        {"rows": 37, "keys": 48, "size": 5},  # half of an instruction's summands
        {"rows": 37, "keys": 24, "size": 40},  # a warp without columns
        {"rows": 15, "keys": 48, "size": 32},  # too few rows for a tile
    ],
)
def test_what_fills_no_tiles_stays_float32(sizes: dict[str, int]) -> None:
    func = attention(**sizes)
    assert round_products(func, GPU, "tf32") is func
    attend = found(func)
    assert attend is not None
    assert not attend.on_engine


@pytest.mark.parametrize(("keys", "rows"), [(128, 16), (384, 16), (512, 16)])
def test_the_rows_of_bert_fit_beside_their_chunks(keys: int, rows: int) -> None:
    attend = found(rounded("tf32", heads=12, rows=keys, keys=keys, size=64))
    assert attend is not None
    assert attend.on_engine
    assert attend.rows >= rows
    schedule(rounded("tf32", heads=12, rows=keys, keys=keys, size=64), "k")  # verified


DEFECTS = {
    "no barrier before the largest score is looked for": Defect(
        "f16", "  barrier();\n  {\n    const int i0_5_i1_5_i2_6_i3_5_2i",
        "  {\n    const int i0_5_i1_5_i2_6_i3_5_2i", "race: ",
    ),
    "no barrier before the weights are multiplied": Defect(
        "f16", "    wait_copies<1>();\n    barrier();", "    wait_copies<1>();", "race: |copied",
    ),
    "scores of the columns before": Defect(
        "f16", "i3_4i_d + i3_4o * 32] = ", "i3_4i_d] = ", "race: |another",
    ),
    "scores behind the last key": Defect(
        "f16", "if (i3_4i_a + i3_4o * 4 < 6) {", "if (true) {", "race: |out of bounds|another",
    ),
    "queries of the rows before": Defect(
        "f16", "in0, i1_14o * 1024", "in0, i1_14o * 512", "another",
    ),
    "a mask for other keys": Defect(
        "f16", "i3_4o * 32])));", "i3_4o * 31])));", "another",
    ),
    "a factor of the row below": Defect(
        "f16", "add_4_factor[matmul_1_rows_copy_r_first * 8", "add_4_factor[0", "another",
    ),
    "a wait for the values too late": Defect(
        "f16", "wait_copies<1>();", "wait_copies<2>();", "read of what is being copied",
    ),
}  # fmt: skip


def problem(emulator: Emulator, scheduled: Scheduled, _: str) -> str:
    """What is wrong with a kernel, in any order; or ""."""
    arrays = data(scheduled.func)
    want = run_func(scheduled.func, {}, arrays)["out"].astype(np.float64)
    for order in ("forward", "backward", "shuffled"):
        try:
            got = emulate(emulator, scheduled, arrays, {}, order)["out"].astype(np.float64)
        except EmulationError as error:
            return str(error)
        if not np.allclose(got, want, rtol=1e-2, atol=1e-2):
            return WRONG
    return ""


def test_every_defect_of_an_attention_is_found() -> None:
    good = {"f16": schedule(CASES["f16"](), "good")}
    assert missed(good, DEFECTS, problem) == []
