"""Entries of a table of 256 bytes are picked by bytes, for all lanes at once where vectors can."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.core.target import Target
from dlc.schedule.text import parse_func
from tests.codegen.jit import NATIVE, check

TABLES = replace(NATIVE, features=frozenset({"avx512f", "avx512bw", "avx512vl", "avx512vbmi"}))


def text(count: int, lanes: int, index: str = "index(u8(A[{}]))", table: str = "u8[256]") -> str:
    where = f"l + i * {lanes}"
    return f"""
def f(A: i8[{count}], T: {table}, *, Z: {table.split("[")[0]}[{count}]):
    for i in range({-(-count // lanes)}):
        for l in vectorize({lanes}):
            if {where} < {count}:
                Z[{where}] = T[{index.format(where)}]
"""


@pytest.mark.parametrize(
    ("source", "target", "picks"),
    [
        (text(256, 64), TABLES, 2),
        (text(200, 16), TABLES, 2),
        (text(256, 64), replace(TABLES, features=TABLES.features - {"avx512vbmi"}), 0),
        (text(256, 128), TABLES, 0),  # more than a register has
        (text(256, 64, table="u8[257]"), TABLES, 0),
        (text(256, 64, table="i16[256]"), TABLES, 0),
        (text(256, 64, index="max(index(A[{}]), 0)"), TABLES, 0),
        (text(256, 64, index="index(i32(u8(A[{}])))"), TABLES, 0),
        (text(256, 64, index="index(u8(A[3]))"), TABLES, 0),  # the same entry for all
    ],
)
def test_vectors_look_up_what_they_can(source: str, target: Target, picks: int) -> None:
    ir = emit_func(parse_func(source), target)
    assert ir.count("call <64 x i8> @llvm.x86.avx512.vpermi2var.qi.512") == picks


@pytest.mark.parametrize("lanes", [8, 16, 64])
@pytest.mark.parametrize("count", [256, 200, 5])
@pytest.mark.parametrize(("table", "dtype"), [("u8", np.uint8), ("i8", np.int8)])
def test_entries_are_those_of_the_bytes(count: int, lanes: int, table: str, dtype: type) -> None:
    """Whole vectors and masked ones; bytes below zero are behind the others."""
    entries = np.random.default_rng(lanes).permutation(256).astype(np.uint8)
    data = {"A": (np.arange(count) - 128).astype(np.int8), "T": entries.view(dtype)}
    kernel = check(text(count, lanes, table=f"{table}[256]"), arrays=data)
    assert ("vpermi2var" in kernel.ir) == ("avx512vbmi" in NATIVE.features)
