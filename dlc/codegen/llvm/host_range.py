"""The check that indices from data lie inside of a tensor, as LLVM IR text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dlc.codegen.llvm.host_expr import HostBuilder
from dlc.codegen.llvm.host_report import Reports
from dlc.schedule.program import CheckRange
from dlc.te.types import TensorType


def emit_check_range(reports: Reports, stmt: CheckRange, type_: TensorType, pointer: str) -> None:
    """A loop over rows of as many elements as there are sizes; one branch behind it.

    Where an element is wrong, a second loop finds it, so that the first need not remember it.
    """
    out = reports.out
    sizes = [out.expr(size) for size in stmt.sizes]
    rows = out.value(f"udiv i64 {out.expr(type_.elems)}, {len(sizes)}")
    head, body, checked, search, onward, done = (
        out.fresh_label(stem) for stem in ("rows", "row", "checked", "search", "onward", "done")
    )
    before = out.label
    out.line(f"br label %{head}")
    out.start(head)
    row = out.value(f"phi i64 [0, %{before}], [%{body}_next, %{body}]")
    good = out.value(f"phi i1 [true, %{before}], [%{body}_good, %{body}]")
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
