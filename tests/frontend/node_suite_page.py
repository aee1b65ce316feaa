"""Writes docs/onnx-tests.md: which of ONNX's tests of single nodes dlc does not pass, and why.

Run as `python -m tests.frontend.node_suite_page`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from tests.frontend.node_suite import ELSEWHERE_RIGHT, OTHERWISE, Outcome, all_cases, run_all

PAGE = Path(__file__).parents[2] / "docs" / "onnx-tests.md"
HEAD = """\
# ONNX's tests of single nodes

Of the {total} tests that come with ONNX {version}, {passed} are converted to a graph that gives the
expected values; the others are below. That machine code computes what the graph means is tested
elsewhere, operator by operator. This page is written by `make operators`; a test holds it to the
code.

Many of these tests pass as inputs what is a constant in a model: axes, shapes, sizes of kernels.
Most are compiled as they are. Where a model can only be compiled once an input is a constant,
`dlc.backend` compiles it for the value the input has in a run, and keeps what it compiled.

Of those converted, machine code fails `test_dft_inverse` and `test_dft_inverse_opset19`: where the
exact result is 0, the expected values are 1.9e-7 and dlc's 3e-15, and the tests allow for 1e-7.
"""


def page(outcome: Outcome) -> str:
    """The whole page, from what became of all tests."""
    import onnx

    why: dict[str, list[str]] = defaultdict(list)
    for name, (operator, reason) in outcome.refused.items():
        why[_reason(operator, reason)].append(name)
    for reason, names in OTHERWISE.items():
        why[reason] += names
    unexplained = set(outcome.failed) - {n for names in why.values() for n in names}
    assert unexplained <= ELSEWHERE_RIGHT, unexplained
    total, missing = len(all_cases()), sum(map(len, why.values()))
    version = ".".join(onnx.__version__.split(".")[:2])
    parts = [HEAD.format(total=f"{total:,}", version=version, passed=f"{total - missing:,}")]
    for reason, names in sorted(why.items(), key=lambda item: (-len(item[1]), item[0])):
        listed = ", ".join(f"`{name}`" for name in sorted(names))
        parts.append(f"\n## {reason} ({len(names)})\n\n{listed}\n")
    return "".join(parts)


def _reason(operator: str, reason: str) -> str:
    if "element type STRING" in reason:
        return "Strings as inputs are not supported"
    name = re.sub(r"-\d+$", "", operator)
    if "training" in operator:
        return f"{name} trains a model"
    return f"{name}: {reason}"


if __name__ == "__main__":
    PAGE.write_text(page(run_all()))
