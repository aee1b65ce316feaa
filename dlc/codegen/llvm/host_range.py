"""The check that indices from data lie inside of a tensor, as LLVM IR text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dlc.codegen.llvm.host_expr import HostBuilder
from dlc.codegen.llvm.host_report import Reports
from dlc.schedule.program import CheckRange
from dlc.te.types import TensorType

LANES = 8
"""Rows that are checked at a time: a vector of the widest machines; others take several."""


def emit_check_range(reports: Reports, stmt: CheckRange, type_: TensorType, pointer: str) -> None:
    """Loops over rows of as many elements as there are sizes; one branch behind them.

    Most rows are checked together, along vectors. Where an element is wrong, a last loop finds it,
    so that the first ones need not remember it.
    """
    out = reports.out
    sizes = [out.expr(size) for size in stmt.sizes]
    rows = out.value(f"udiv i64 {out.expr(type_.elems)}, {len(sizes)}")
    head, body, checked, search, onward, done = (
        out.fresh_label(stem) for stem in ("rows", "row", "checked", "search", "onward", "done")
    )
    whole, together = _rows_together(out, stmt, type_, pointer, rows, sizes)
    before = out.label
    out.line(f"br label %{head}")
    out.start(head)
    row = out.value(f"phi i64 [{whole}, %{before}], [%{body}_next, %{body}]")
    good = out.value(f"phi i1 [{together}, %{before}], [%{body}_good, %{body}]")
    more = out.value(f"icmp ult i64 {row}, {rows}")
    out.line(f"br i1 {more}, label %{body}, label %{checked}")
    out.start(body)
    still = good
    for _, fits in _row(out, stmt, type_, pointer, row, sizes):
        still = out.value(f"and i1 {still}, {fits}")
    out.line(f"%{body}_good = and i1 {still}, true")
    out.line(f"%{body}_next = add i64 {row}, 1")
    out.line(f"br label %{head}")
    out.start(checked)
    out.line(f"br i1 {good}, label %{done}, label %{search}")
    out.start(search)
    row = out.value(f"phi i64 [0, %{checked}], [%{onward}_next, %{onward}]")
    out.require(out.value(f"icmp ult i64 {row}, {rows}"), stmt.message)  # the caller mended it
    elements = _row(out, stmt, type_, pointer, row, sizes)
    for size, limit, (value, fits) in zip(stmt.sizes, sizes, elements, strict=True):
        out.require(fits, reports.outside(stmt.message, size, value, limit))
    out.line(f"br label %{onward}")
    out.start(onward)
    out.line(f"%{onward}_next = add i64 {row}, 1")
    out.line(f"br label %{search}")
    out.start(done)


def _rows_together(
    out: HostBuilder,
    stmt: CheckRange,
    type_: TensorType,
    pointer: str,
    rows: str,
    sizes: Sequence[str],
) -> tuple[str, str]:
    """How many rows fill whole vectors, `LANES` at a time, and whether all of these fit."""
    bits, count = type_.dtype.bits, len(sizes)
    vector = f"<{LANES} x i64>"
    limits = [
        _lanes(out, [sizes[(first + lane) % count] for lane in range(LANES)])
        for first in range(0, LANES * count, LANES)
    ]
    head, body, behind = (out.fresh_label(stem) for stem in ("vectors", "vector", "rest"))
    before = out.label
    whole = out.value(f"and i64 {rows}, {-LANES}")
    out.line(f"br label %{head}")
    out.start(head)
    row = out.value(f"phi i64 [0, %{before}], [%{body}_next, %{body}]")
    good = out.value(f"phi <{LANES} x i1> [splat (i1 true), %{before}], [%{body}_good, %{body}]")
    more = out.value(f"icmp ult i64 {row}, {whole}")
    out.line(f"br i1 {more}, label %{body}, label %{behind}")
    out.start(body)
    start, still = out.value(f"mul i64 {row}, {count}"), good
    for number, limit in enumerate(limits):
        at = out.value(f"add i64 {start}, {number * LANES}")
        place = out.value(f"getelementptr i{bits}, ptr {pointer}, i64 {at}")
        value = out.value(f"load <{LANES} x i{bits}>, ptr {place}, align {bits // 8}")
        value = out.value(f"sext <{LANES} x i32> {value} to {vector}") if bits == 32 else value
        moved = out.value(f"add {vector} {value}, {limit}") if stmt.negative else value
        high = out.value(f"add {vector} {limit}, {limit}") if stmt.negative else limit
        fits = out.value(f"icmp ult {vector} {moved}, {high}")
        still = out.value(f"and <{LANES} x i1> {still}, {fits}")
    out.line(f"%{body}_good = and <{LANES} x i1> {still}, {still}")
    out.line(f"%{body}_next = add i64 {row}, {LANES}")
    out.line(f"br label %{head}")
    out.start(behind)
    mask = out.value(f"bitcast <{LANES} x i1> {good} to i{LANES}")
    return whole, out.value(f"icmp eq i{LANES} {mask}, -1")


def _lanes(out: HostBuilder, parts: Sequence[str]) -> str:
    total = "poison"
    for lane, part in enumerate(parts):
        total = out.value(f"insertelement <{LANES} x i64> {total}, i64 {part}, i64 {lane}")
    return total


def _row(
    out: HostBuilder,
    stmt: CheckRange,
    type_: TensorType,
    pointer: str,
    row: str,
    sizes: Sequence[str],
) -> Iterator[tuple[str, str]]:
    """Each element of a row, and whether it fits its size."""
    bits = type_.dtype.bits
    first = out.value(f"mul i64 {row}, {len(sizes)}")
    for column, size in enumerate(sizes):
        at = out.value(f"add i64 {first}, {column}")
        place = out.value(f"getelementptr i{bits}, ptr {pointer}, i64 {at}")
        value = out.value(f"load i{bits}, ptr {place}, align {bits // 8}")
        value = out.value(f"sext i32 {value} to i64") if bits == 32 else value
        moved = out.value(f"add i64 {value}, {size}") if stmt.negative else value
        high = out.value(f"add i64 {size}, {size}") if stmt.negative else size
        yield value, out.value(f"icmp ult i64 {moved}, {high}")  # what is below 0 is large
