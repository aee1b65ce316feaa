"""Attention on the matrix engine: scheduled kernels against exact arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.core.types import DType
from dlc.graph.arrays import round_to
from dlc.graph.lower import lower_group
from dlc.graph.text import parse_graph
from dlc.schedule.loop import LoopKind, loops
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import attend_planes, prepare, schedule_by
from dlc.schedule.trace import Trace
from tests.codegen.jit import Kernel
from tests.codegen.test_tiles import ENGINE, needs_engine, small

# The weights are small integers, so that all sums are exact.
TEXT = """
def main(SIZES q: f32[B, M, H, D], k: f32[B, N, H, D], v: f32[B, N, H, D], m: f32[B, 1, M, N]):
    a: f32[B, H, M, D] = transpose(q, perm=(0, 2, 1, 3))
    b: f32[B, H, D, N] = transpose(k, perm=(0, 2, 3, 1))
    c: f32[B, H, N, D] = transpose(v, perm=(0, 2, 1, 3))
    s: f32[B, H, M, N] = matmul_pair(a, b, planes=COUNT)
    t: f32[B, H, M, N] = add(s, m)
    h: f32[B, H, M, 1] = reduce(t, kind="max", axes=(3,))
    u: f32[B, H, M, N] = sub(t, h)
    w: f32[B, H, M, N] = hard_sigmoid(u, alpha=0.125, beta=4.0)
    x: f32[B, H, M, D] = matmul_pair(w, c, planes=COUNT)
    y: f32[B, M, H, D] = transpose(x, perm=(0, 2, 1, 3))
    return y
"""


def scheduled(count, text=TEXT, **sizes):
    """The kernel, and the text of its loops; what is not in `sizes` is open."""
    func = scheduled_by(attend_planes, text.replace("COUNT", str(count)), ENGINE, sizes)
    return Kernel(func, ENGINE), str(func)


def scheduled_by(rule, text, target, sizes):
    """The attention of a text, scheduled by one rule; what is not in `sizes` is open."""
    func = lower_group(parse_graph(filled_in(text, sizes)), "kernel")
    prepared = Trace(func)
    prepare(prepared, target)
    return optimize(func, target, schedule_by(rule, prepared, target, {}).steps)


def filled_in(text, sizes):
    """A graph with sizes in it; what is not in `sizes` is open."""
    names = [n for n in "BMNHD" if n not in sizes]
    text = text.replace("SIZES ", "".join(f"{n.lower()}: size, " for n in names))
    for name in "BMNHD":
        text = text.replace(f"[{name},", f"[{sizes.get(name, name.lower())},")
        for end in ",]":
            text = text.replace(f" {name}{end}", f" {sizes.get(name, name.lower())}{end}")
    return text


def operands(batch, rows, keys, heads, size):
    shapes = [(batch, rows, heads, size), *[(batch, keys, heads, size)] * 2]
    return [*(small(n, *s) for n, s in enumerate(shapes)), small(4, batch, 1, rows, keys)]


def named(arrays):
    return {f"in{n}": x for n, x in enumerate(arrays)}


def expected(q, k, v, m):
    q, k, v, m = (x.astype(np.float64) for x in (q, k, v, m))
    with np.errstate(invalid="ignore"):
        t = np.einsum("bmhd,bnhd->bhmn", q, k) + m
        w = np.clip((t - t.max(axis=3, keepdims=True)) * 0.125 + 4.0, 0, 1)
        return np.einsum("bhmn,bnhd->bmhd", w, v)


CASES = {
    "whole_tiles": ((2, 64, 32, 3, 32), ("pack_rows_apart", "pack_columns_apart", "split_bf16")),
    "uneven": ((1, 37, 45, 2, 48), ("pack_columns_apart", "split_bf16")),
    "few_rows": ((1, 5, 75, 1, 16), ()),
    "wide": ((2, 33, 17, 1, 80), ()),
}


@needs_engine
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_products_of_small_integers_are_exact(name, count):
    (batch, rows, keys, heads, size), instructions = CASES[name]
    kernel, loops = scheduled(count, B=batch, M=rows, N=keys, H=heads, D=size)
    assert "tdpbf16ps" in kernel.ir
    assert all(f"{i}_bf16_{count}" in loops or f"{i}_{count}" in loops for i in instructions)
    given = operands(batch, rows, keys, heads, size)
    found = kernel({}, named(given))["out"]
    np.testing.assert_array_equal(found, expected(*given))


def parallel(func):
    """The iterations of the loops that run parallel."""
    return [str(f.extent) for f in loops(func.body).values() if f.kind is LoopKind.PARALLEL]


@needs_engine
@pytest.mark.parametrize("rows", [70, "m"])
def test_cores_share_the_rows_of_few_matrices(rows):
    fixed = {"M": rows} if isinstance(rows, int) else {}
    target, text = replace(ENGINE, cores=2), TEXT.replace("COUNT", "1")
    func = scheduled_by(attend_planes, text, target, {"B": 1, "N": 45, "H": 1, "D": 32, **fixed})
    keys, values, chunks = parallel(func)
    assert (keys, values) == ("2", "2")
    assert chunks == ("3" if fixed else "(m + 31) // 32")
    given = operands(1, 70, 45, 1, 32)
    sizes = {} if fixed else {"m": 70}
    found = Kernel(func, target)(sizes, named(given))["out"]
    np.testing.assert_array_equal(found, expected(*given))


@needs_engine
def test_open_lengths_are_exact():
    kernel, loops = scheduled(1, H=2, D=32)
    assert "pack_columns_apart_bf16_1" in loops
    assert loops.count("split_bf16_1") == 2  # of the queries, and of weights for whole blocks
    for batch, rows, keys in ((1, 32, 64), (2, 71, 33), (1, 1, 97), (3, 16, 15), (1, 0, 4)):
        given = operands(batch, rows, keys, 2, 32)
        sizes = {"b": batch, "m": rows, "n": keys}
        found = kernel(sizes, named(given))["out"]
        np.testing.assert_array_equal(found, expected(*given))


def test_an_open_number_of_heads_is_packed_without_instructions():
    """Also on a machine that cannot run it: lines lie an unknown number of elements apart."""
    func = scheduled_by(attend_planes, TEXT.replace("COUNT", "1"), ENGINE, {"D": 32})
    assert "tdpbf16ps" in emit_func(func, ENGINE)


@needs_engine
def test_one_matrix_is_rounded_as_it_is_written():
    end = "    z: bf16[B, M, H, D] = narrow(y)\n    return z"
    kernel, _ = scheduled(1, TEXT.replace("    return y", end), B=1, M=33, N=45, H=3, D=32)
    given = operands(1, 33, 45, 3, 32)
    found = kernel({}, named(given))["out"].astype(np.float32)
    wanted = round_to(expected(*given), DType.BF16).astype(np.float32)
    np.testing.assert_array_equal(found, wanted)


@needs_engine
def test_what_is_not_finite_is_computed_once_more():
    kernel, _ = scheduled(1, B=1, M=40, N=50, H=1, D=32)
    q, k, v, m = operands(1, 40, 50, 1, 32)
    v[0, 3, 0, 2], v[0, 7, 0, 5] = np.inf, np.nan
    k[0, 49, 0] = 0.0
    k[0, 49, 0, 1], q[0, :, 0, 1] = np.inf, 0.0
    q[0, 4, 0, 1] = 1.0
    found = kernel({}, named((q, k, v, m)))["out"]
    np.testing.assert_array_equal(found, expected(q, k, v, m))
    assert np.isfinite(found[0, 4]).sum() == 0
    assert np.isnan(found).any()
