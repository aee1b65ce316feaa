"""Why a run on a GPU fails whose launches reported something, as LLVM IR text.

A report is of the first element, in the order of a tensor, that is no index: its place, its value,
and the limit it was compared with. Launches find such elements in any order, so each word of a
report is the largest that any thread has: not (place * 2**24 + 24 bits of the value, or the limit),
which the first place decides. Words of zeros are no report.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlc.codegen.llvm.host_expr import DECLARATIONS, HostBuilder, emit_messages
from dlc.codegen.llvm.host_report import Reports
from dlc.core.errors import CodegenError
from dlc.core.target import Target
from dlc.schedule.program import BindSize, CheckRange, Program, statements
from dlc.te.expr import Load

EXPLAIN = "dlc_gpu_explain"
REPORT_BYTES = 64  # of which are used:
_WORDS = 3  # for the value, and as many for the limit
_PART_BITS = 24


def emit_explain(program: Program, checks: Sequence[CheckRange], target: Target) -> str:
    """A function that fails as a CPU does, if there is a report; the first check counts."""
    messages: dict[str, str] = {}
    out = HostBuilder(EXPLAIN, messages, _no_element)
    reports = Reports(out)
    for stmt in statements(program.body):
        if isinstance(stmt, BindSize):
            reports.bound(stmt.name, stmt.value)
    for number, check in enumerate(checks):
        _explain(out, reports, check, number * REPORT_BYTES)
    out.line("ret i32 0")
    head = f"define hidden i32 @{EXPLAIN}(ptr %host, ptr %reports) #0 {{"
    body = "\n".join([head, "entry:", *out.slots, *out.lines, *out.failures(), "}", ""])
    parts = [f'target triple = "{target.triple}"\n', DECLARATIONS, body, emit_messages(messages)]
    return "".join([*parts, "attributes #0 = { nounwind }\n"])


def _explain(out: HostBuilder, reports: Reports, check: CheckRange, offset: int) -> None:
    """One report, if it was made."""
    words = []
    for word in range(2 * _WORDS):
        at = out.value(f"getelementptr i8, ptr %reports, i64 {offset + 8 * word}")
        words.append(out.value(f"xor i64 {out.value(f'load i64, ptr {at}, align 8')}, -1"))
    made, onward = out.fresh_label("made"), out.fresh_label("onward")
    is_made = out.value(f"icmp ne i64 {words[0]}, -1")
    out.line(f"br i1 {is_made}, label %{made}, label %{onward}")
    out.start(made)
    place = out.value(f"lshr i64 {words[0]}, {_PART_BITS}")
    column = out.value(f"urem i64 {place}, {len(check.sizes)}")
    value, limit = (_joined(out, words[n : n + _WORDS]) for n in (0, _WORDS))
    for number, size in enumerate(check.sizes):
        other = out.value(f"icmp ne i64 {column}, {number}")
        out.require(other, reports.outside(check.message, size, value, limit))
    out.line(f"br label %{onward}")
    out.start(onward)


def _joined(out: HostBuilder, words: Sequence[str]) -> str:
    """A number of 64 bits, whose lowest come first."""
    total = "0"
    for n, word in enumerate(words):
        part = out.value(f"and i64 {word}, {2**_PART_BITS - 1}")
        total = out.value(f"or i64 {total}, {out.value(f'shl i64 {part}, {n * _PART_BITS}')}")
    return total


def _no_element(load: Load) -> str:
    raise CodegenError(
        stage="the host emitter", unit=load.buffer, reason="a report is explained by itself"
    )
