"""A loop that streams an operand asks for it ahead, and computes the same."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.graph.lower import lower_group
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.text import parse_graph
from dlc.schedule.loop import loops
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.text import parse_func
from dlc.te.expr import Var, index
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType
from tests.codegen.jit import AVX2, check

SUMS = """
def f(A: f32[3, 10], B: f32[10, 8], *, C: f32[3, 8]):
    for i in range(3):
        t = alloc(f32[8], "register")
        for j_init in vectorize(8):
            t[j_init] = 0.0
        for k in range(10{notes}):
            for j in vectorize(8):
                t[j] += A[i, k] * B[k, j]
        for j_done in vectorize(8):
            C[i, j_done] = t[j_done]
"""


@pytest.mark.parametrize(
    ("notes", "asked"),
    [
        ("", 0),
        (", prefetch=64", 1),
        (", prefetch=64, unroll=4", 2),
        (", unroll=16, prefetch=64", 5),
    ],
)
def test_each_line_of_an_operand_is_asked_for_once(notes: str, asked: int) -> None:
    func = parse_func(SUMS.replace("{notes}", notes).strip())
    kernel = check(func, target=AVX2)
    assert kernel.ir.count("call void @llvm.prefetch") == asked


@pytest.mark.parametrize(
    ("l2_bytes", "rows", "asks"),
    [(1 << 20, 5, False), (1 << 10, 5, True), (1 << 10, 16 * 6, True), (1 << 10, 17 * 6, False)],
)
def test_columns_from_beyond_the_cache_are_asked_for(l2_bytes: int, rows: int, asks: bool) -> None:
    x, w = placeholder("x", TensorType((rows, 19))), placeholder("w", TensorType((3, 19, 8)))
    func = lower_tensors("f", (), (x, w), (MatMulPacked(n=24).compute(x, w),))
    target = replace(AVX2, l2_bytes=l2_bytes)
    read_ahead = "i32 0, i32 3, i32 1)"  # not what is written
    assert (read_ahead in emit_func(optimize(func, target), target)) is asks


@pytest.mark.parametrize("lead", [(Var("b"),), ()])
def test_open_numbers_of_rows_are_assumed_to_be_few_altogether(lead) -> None:
    """The tiles for what is left ask too: with fewer rows than a tile has, they alone read."""
    sizes = (*lead, Var("n"))
    x, w = placeholder("x", TensorType((*sizes, 19))), placeholder("w", TensorType((3, 19, 16)))
    names = tuple(size.name for size in sizes if isinstance(size, Var))
    func = lower_tensors("f", names, (x, w), (MatMulPacked(n=48).compute(x, w),))
    wide = replace(AVX2, features=AVX2.features | {"avx512f"}, l2_bytes=1 << 10)
    done = optimize(func, wide)
    summands = [loop for loop in loops(done.body).values() if loop.extent == index(19)]
    assert len(summands) > 1
    assert all("prefetch" in dict(loop.notes) for loop in summands)


COPY = """
def f(A: f32[{rows}, 64], *, B: f32[{rows}, 64]):
    for i in range({rows}):
        for j in range(4):
            for k in vectorize(16):
                B[i, j * 16 + k] = A[i, j * 16 + k]
"""


@pytest.mark.parametrize(("rows", "asks"), [(65, True), (64, False)])
def test_lines_of_large_results_are_asked_for_before_they_are_written(rows, asks):
    target = replace(AVX2, l2_bytes=32 * 1024)
    func = parse_func(COPY.format(rows=rows))
    text = emit_func(func, target)
    assert ("i32 1, i32 3, i32 1)" in text) is asks
    assert "+prfchw" in text
    check(func, target=target)


def test_each_line_of_a_wide_vector_is_asked_for():
    func = parse_func(
        COPY.format(rows=65).replace("range(4)", "range(1, prefetch=4096)").replace("16", "64")
    )
    text = emit_func(func, replace(AVX2, l2_bytes=32 * 1024))
    for wanted in ("i32 0, i32 3, i32 1)", "i32 1, i32 3, i32 1)"):  # 256 bytes read, and written
        assert text.count(wanted) == 4
    check(func, target=AVX2)


SOFTMAX = "def main(x: f32[99, {n}]):\n    y: f32[99, {n}] = softmax(x)\n    return y\n"


@pytest.mark.parametrize(
    ("n", "bytes_", "place"), [(600, 2400, "out"), (100_000, None, "out"), (100, 1200, "in0_exp")]
)
def test_rows_ask_for_the_next_ones_and_keep_what_they_become_in_the_result(n, bytes_, place):
    """Short rows go three at a time, and stay near by; of long ones nothing asked for would."""
    text = str(optimize(lower_group(parse_graph(SOFTMAX.format(n=n)), "f"), AVX2))
    made = next(line for line in text.split("\n") if " = flush(exp(" in line)
    assert made.strip().startswith(f"{place}[")
    assert set(re.findall(r"prefetch=(\d+)", text)) == ({str(bytes_)} if bytes_ else set())


def test_rows_whose_powers_are_only_added_up_ask_for_the_next_ones_too():
    graph = parse_graph(SOFTMAX.format(n=600).replace("softmax(x)", "log_softmax(x)"))
    assert "(25, prefetch=2400)" in str(optimize(lower_group(graph, "f"), AVX2))


def test_local_buffers_and_scalars_are_written_without_asking():
    func = parse_func(
        """
def f(A: f32[99, 64], *, B: f32[99, 64]):
    for i in range(99):
        t = alloc(f32[64], "local")
        for j in range(4):
            for k in vectorize(16):
                t[j * 16 + k] = A[i, j * 16 + k]
        for j1 in range(64):
            B[i, j1] = t[63 - j1]
"""
    )
    assert "llvm.prefetch" not in emit_func(func, replace(AVX2, l2_bytes=1024))
