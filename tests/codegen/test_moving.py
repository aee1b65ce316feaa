"""Addresses move with the innermost loops, and what they reach stays the same."""

from __future__ import annotations

import re

import pytest

from dlc.codegen.llvm.compile import assembly, compile_ir
from dlc.codegen.llvm.emit import emit_func
from dlc.codegen.llvm.moving import MARK
from dlc.core.target import Target
from dlc.schedule.text import parse_func
from tests.codegen.assembly_loops import innermost_loops
from tests.codegen.jit import AVX2, NATIVE, TARGETS, check

INTEGER = re.compile(r"\t(add|sub|inc|dec|imul|lea|mov|shl|cmp)[ql]?\t")

TILE = """
def f(A: f32[5, 30], W: f32[30, 16], *, C: f32[5, 16]):
    acc = alloc(f32[5, 16], "register")
    for i in unroll(5):
        for j in unroll(2):
            for l in vectorize(8):
                acc[i, j * 8 + l] = 0.0
    for k in range(30):
        for i2 in unroll(5):
            for j2 in unroll(2):
                for l2 in vectorize(8):
                    acc[i2, j2 * 8 + l2] += A[i2, k] * W[k, j2 * 8 + l2]
    for i3 in unroll(5):
        for j3 in unroll(2):
            for l3 in vectorize(8):
                C[i3, j3 * 8 + l3] = acc[i3, j3 * 8 + l3]
"""
SUM = """
def f(A: f32[328], B: f32[328], *, C: f32[328]):
    for i in range(41):
        for l in vectorize(8):
            C[i * 8 + l] = A[i * 8 + l] + B[i * 8 + l]
"""
DIGITS = """
def f(A: f32[7, 12, 35], B: f32[12], *, C: f32[7, 12, 35]):
    for i in {kind}(420):
        for l in vectorize(7):
            C[i // 60, i // 5 % 12, i % 5 * 7 + l] = (
                A[(i + 3) % 7, i // 35, i % 5 * 7 + l] + B[i // 5 % 12]
            )
"""
DEAD = """
def f(A: f32[3, 30], *, C: f32[2]):
    acc = alloc(f32[3], "register")
    for i in unroll(3):
        acc[i] = 0.0
    for k in range(30):
        for i2 in unroll(3):
            acc[i2] += A[i2, k]
    for i3 in unroll(2):
        C[i3] = acc[i3 * 2]
"""
OPEN = """
def f(n: size, m: size, A: f32[n, m], B: f32[9, m], *, C: f32[n, m]):
    for i in parallel(n):
        for j in range(m):
            for k in range(3):
                C[i, j] = A[n - 1 - i, j] + B[i % 9, (j + 1) % m] * {read}
"""
LATER = """
def f(A: f32[40], *, C: f32[40], D: f32[40]):
    for i in range(10):
        for j in unroll(4):
            C[i * 4 + j] = A[39 - i * 4 - j]
        if i % 3 == 1:
            for j2 in unroll(4):
                D[i * 4 + j2] = A[i] + A[j2]
        if i % 3 != 1:
            for j3 in unroll(4):
                D[i * 4 + j3] = 7.0
"""


def hot(text: str, target: Target) -> list[str]:
    """The longest innermost loop."""
    return max(innermost_loops(assembly(emit_func(parse_func(text), target), target)), key=len)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(
    "text",
    [TILE, SUM, DEAD, LATER, DIGITS.format(kind="range"), DIGITS.format(kind="parallel")],
    ids=["tile", "sum", "dead", "later", "digits", "parallel digits"],
)
def test_same_result(text: str, target: Target) -> None:
    check(text, target=target)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_open_sizes(target: Target) -> None:
    sizes = [{"n": 1, "m": 1}, {"n": 13, "m": 5}, {"n": 0, "m": 3}, {"n": 3, "m": 0}]
    check(OPEN.format(read="A[i, m - 1 - j]"), *sizes, target=target)


def test_a_tile_adds_to_two_pointers_and_counts() -> None:
    arithmetic = [line.split()[0] for line in hot(TILE, AVX2) if INTEGER.match(line)]
    assert sorted(arithmetic) == ["addq", "addq", "decq"]


def test_many_buffers_share_an_offset() -> None:
    arithmetic = [line.split()[0] for line in hot(SUM, AVX2) if INTEGER.match(line)]
    assert arithmetic == ["addq", "cmpq"]


def test_remainders_are_no_products() -> None:
    text = emit_func(parse_func(DIGITS.format(kind="range")), AVX2)
    assert "urem" not in text


def test_sums_that_nobody_reads_are_dropped() -> None:
    assert sum("vaddss" in line for line in hot(DEAD, AVX2)) == 2


def test_llvm_rewrites_the_addresses_of_other_modules() -> None:
    text = emit_func(parse_func(DEAD), NATIVE)
    assert text.startswith(MARK)
    other = text.removeprefix(MARK)
    before = compile_ir(other, NATIVE)
    assert compile_ir(text, NATIVE) != before
    assert compile_ir(other, NATIVE) == before


def test_addresses_of_open_sizes_move() -> None:
    assert emit_func(parse_func(OPEN.format(read="A[i, j]")), AVX2).startswith(MARK)


def test_other_processors_are_left_alone() -> None:
    arm = Target(triple="aarch64-unknown-linux-gnu", features=frozenset({"neon"}))
    assert MARK not in emit_func(parse_func(SUM), arm)
