"""The innermost loops of x86 assembly: where a kernel spends its time."""

from __future__ import annotations

import re


def spills_in_hot_loops(asm: str) -> int:
    """How often innermost loops of x86 assembly touch the stack: 0 in a good kernel."""
    stack = ["(%rsp"]
    if "movq\t%rsp, %rbp" in asm:  # else %rbp is a register like any other
        stack.append("(%rbp")
    lines = [line for body in innermost_loops(asm) for line in body]
    return sum(any(place in line for place in stack) for line in lines)


def innermost_loops(asm: str) -> list[list[str]]:
    """The lines of each loop that jumps back to its start and holds no other such loop."""
    lines = asm.splitlines()
    labels = {line.split(":")[0]: n for n, line in enumerate(lines) if re.match(r"\.LBB\S+:", line)}
    spans = []
    for n, line in enumerate(lines):
        jump = re.match(r"\s+j\w+\s+(\.LBB\S+)", line)
        if jump and (first := labels.get(jump.group(1), n)) < n:
            spans.append((first, n))
    innermost = [
        s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)
    ]
    return [lines[first:last] for first, last in innermost]
