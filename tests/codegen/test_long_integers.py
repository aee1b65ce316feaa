"""Floats as integers of 64 bits: exact in vectors, and saturated where they are too large."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.core.target import Target
from dlc.schedule.text import parse_func
from tests.codegen.jit import AVX2, TARGETS, check

CAST = """
def f(A: {dtype}[{rows}, 4], *, B: {to}[{rows}, 4]):
    for i in range({rows}):
        for l in vectorize(4):
            B[i, l] = {to}(A[i, l])
"""
NEAR = [0.0, -0.0, 0.5, -0.5, 0.99999994, -1.5, 7.0, -(2.0**31) - 1, 2.0**40 + 3, 5e-324]
EDGES = [2.0**51 - 1, 2.0**51 - 0.5, 2.0**51, 2.0**52 + 1, 2.0**62, 2.0**63, 2.0**64, 1e30]
BEYOND = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("to", ["i64", "u64"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_floats_are_truncated_and_saturated(dtype: str, to: str, target: Target) -> None:
    """Each number beside small ones, so that vectors of both kinds have it in each lane."""
    values = [*NEAR, *EDGES, *(-v for v in EDGES), *BEYOND]
    rows = [np.roll([v, 1.75, -2.25, 3.0], n) for v in values for n in range(4)]
    kind = {"f32": np.float32, "f64": np.float64, "f16": np.float16}[dtype]
    with np.errstate(over="ignore"):
        given = np.array(rows).astype(kind)
    text = CAST.format(dtype=dtype, to=to, rows=len(rows)).strip()
    check(text, arrays={"A": given}, target=target)


def test_vectors_convert_where_no_instruction_does() -> None:
    func = parse_func(CAST.format(dtype="f32", to="i64", rows=3).strip())
    newer = replace(AVX2, features=AVX2.features | {"avx512f", "avx512vl", "avx512dq"})
    arm = Target(triple="aarch64-unknown-linux-gnu", features=frozenset({"neon"}))
    assert "fadd" in emit_func(func, AVX2)
    assert all("fadd" not in emit_func(func, target) for target in (newer, arm))
