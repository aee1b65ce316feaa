"""Vectors of polynomials side by side keep the order of their operations, and nothing else does."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dlc.codegen.llvm.abreast import IN_ORDER
from dlc.codegen.llvm.compile import assembly, compile_ir
from dlc.codegen.llvm.emit import emit_func
from dlc.codegen.llvm.moving import MARK
from dlc.core.target import Target
from dlc.graph.lower import lower_group
from dlc.graph.text import parse_graph
from dlc.schedule.pipeline import optimize
from dlc.schedule.text import parse_func
from tests.codegen.assembly_loops import innermost_loops
from tests.codegen.jit import AVX2, check

AVX512 = Target(features=frozenset({"avx512f", "avx2", "fma"}))


def text(value: str, lanes: int) -> str:
    return f"""
def f(A: f32[256], *, Z: f32[256]):
    for i in range({256 // lanes}):
        for l in vectorize({lanes}):
            Z[l + i * {lanes}] = {value.format(f"A[l + i * {lanes}]")}
"""


@pytest.mark.parametrize(
    ("value", "lanes", "target", "in_order"),
    [
        ("exp({})", 32, AVX2, True),
        ("sigmoid({0}) * {0}", 16, AVX2, True),
        ("exp({})", 8, AVX2, False),  # nothing stands beside it
        ("{0} * {0} + sqrt({0})", 32, AVX2, False),  # one instruction
        ("exp({})", 64, AVX512, False),  # alternate by themselves
    ],
)
def test_polynomials_of_several_vectors_are_marked(value, lanes, target, in_order):
    ir = emit_func(parse_func(text(value, lanes)), target)
    assert ir.startswith(MARK + IN_ORDER) == in_order
    assert (IN_ORDER in ir) == in_order


def waits(ir: str) -> int:
    """How many multiply-adds read what the one before them computed."""
    (loop,) = innermost_loops(assembly(ir, AVX2))
    fused = [line for line in loop if "vfmadd" in line]
    assert len(fused) == 4 * 9
    results = [re.findall(r"%ymm\d+", line)[-1] for line in fused]
    return sum(result in line for result, line in zip(results, fused[1:], strict=False))


def test_operations_of_the_vectors_alternate():
    ir = emit_func(parse_func(text("exp({})", 32)), AVX2)
    assert waits(ir) < waits(ir.replace(IN_ORDER, "")) / 2


def test_the_scheduler_is_back_for_the_next_kernel():
    plain = emit_func(parse_func(text("exp({})", 8)), AVX2)
    before = compile_ir(plain, AVX2)
    wide = emit_func(parse_func(text("exp({})", 32)), AVX2)
    assert assembly(wide, AVX2) != assembly(wide.replace(IN_ORDER, ""), AVX2)
    assert compile_ir(plain, AVX2) == before


@pytest.mark.parametrize("value", ["exp({})", "tanh({})", "erf({})", "flush(exp({}))"])
def test_results_do_not_depend_on_how_many_run(value):
    data = {"A": np.linspace(-30, 30, 256, dtype=np.float32)}
    one, four = (check(text(value, n), target=AVX2, arrays=data)({}, data)["Z"] for n in (8, 32))
    np.testing.assert_array_equal(one, four)


def tile(value: str, place: str = "l + j * 8, i") -> str:
    """Twelve vectors written out, as a tile of products ends."""
    column, row = place.split(", ")
    return f"""
def f(A: f32[4, 24], *, Z: f32[4, 24]):
    for i in range(4):
        for l in range(24):
            Z[i, l] = 0.5
    for i in unroll(4):
        for j in unroll(3):
            for l in vectorize(8):
                Z[{row}, {column}] = {value.format(f"A[{row}, {column}]")}
"""


def emitted(source: str, target: Target = AVX2) -> list[str]:
    """The names of the functions that are called for one lane group after the other."""
    ir = emit_func(parse_func(source), target)
    return re.findall(r"call <8 x float> @llvm\.(\w+)", ir)


def test_operations_of_unrolled_vectors_alternate():
    found = emitted(tile("exp(abs({}))"))
    assert found[:7] == ["fabs"] * 6 + ["fma"]
    wide = emitted(tile("exp(abs({}))"), AVX512)
    assert wide[:2] == ["fabs", "fma"]


def test_what_an_iteration_reads_of_another_one_is_there():
    """A running sum down the rows, a sum of all in one place, and a row written again."""
    rows = np.random.default_rng(5).standard_normal((4, 24)).astype(np.float32)
    for value, place in (
        ("tanh({0}) + Z[max(i - 1, 0), l + j * 8]", "l + j * 8, i"),
        ("tanh(A[i, l + j * 8]) + Z[i // 4, l]", "l, i // 4"),
        ("tanh(A[i, l + j * 8])", "l + j * 4, i"),
    ):
        source = tile(value, place)
        assert emitted(source)[:2] == ["fabs", "fma"]
        check(source, target=AVX2, arrays={"A": rows})


def test_a_branch_ends_a_group():
    """One arm reads behind the end, and is never taken."""
    rows = np.random.default_rng(6).standard_normal((4, 24)).astype(np.float32)
    source = tile("exp({0}) + (A[i * 7, l] if 0 < i and 90.0 < A[i, 0] else A[i, l])")
    ir = emit_func(parse_func(source), AVX2)
    assert len(re.findall(r"^then", ir, re.MULTILINE)) == 9
    check(source, target=AVX2, arrays={"A": rows})


def test_registers_that_an_iteration_takes_apart_are_not_read_before():
    data = np.random.default_rng(7).standard_normal(16).astype(np.float32)
    source = """
def f(A: f32[16], *, Z: f32[16]):
    acc = alloc(f32[16], "register")
    for l in vectorize(16):
        acc[l] = A[l]
    for j in unroll(2):
        for l in vectorize(8):
            acc[l + j * 8] = exp(acc[l + j * 8])
    for l in vectorize(16):
        Z[l] = acc[l]
"""
    check(source, target=AVX2, arrays={"A": data})


@pytest.mark.parametrize(
    ("operator", "lanes"), [("gather(x, i, axis=0)", 32), ("gather_elements(x, i, axis=1)", 8)]
)
def test_vectors_share_what_it_takes_to_find_a_row(operator, lanes):
    """Of elements that data chooses each one has a place of its own."""
    index, shape = ("9", "9, 64") if lanes == 32 else ("50, 64", "50, 64")
    head = f"def main(x: f32[50, 64], i: i64[{index}]):\n"
    graph = parse_graph(f"{head}    y: f32[{shape}] = {operator}\n    return y\n")
    func = optimize(lower_group(graph, "f"), AVX2)
    assert f"in vectorize({lanes})" in str(func)
    check(func, target=AVX2)
