"""Vectors of polynomials side by side keep the order of their operations, and nothing else does."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dlc.codegen.llvm.abreast import IN_ORDER
from dlc.codegen.llvm.compile import assembly, compile_ir, innermost_loops
from dlc.codegen.llvm.emit import emit_func
from dlc.codegen.llvm.moving import MARK
from dlc.core.target import Target
from dlc.schedule.text import parse_func
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
        ("exp({})", 32, AVX512, False),  # has registers for it
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
