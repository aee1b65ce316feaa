"""a < b -> true or false, where the least and the largest numbers of both say so; also <=, >, >=.

Masks of exporters ask whether places, which count from 0, are at least 0.
"""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.graph import Value
from dlc.graph.integers import integer_range
from dlc.graph.ops.binary import Greater, GreaterEqual, Less, LessEqual
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.graph.rules.known_truth import repeated


@rule(Pattern((Less, LessEqual, Greater, GreaterEqual), ("a", "b")))
def known_comparison(match: Match) -> Value | Refusal:
    """Repeat what every comparison gives."""
    a, b = (integer_range(match.editor, match[name]) for name in ("a", "b"))
    if a is None or b is None:
        return Refusal("an operand may be no whole number")
    op = match.root.op
    if isinstance(op, Greater | GreaterEqual):
        a, b = b, a
    # With `apart` of 1, a < b is asked for, else a <= b.
    apart = int(isinstance(op, Less | Greater))
    holds, fails = a[1] + apart <= b[0], b[1] < a[0] + apart
    if not holds and not fails:
        return Refusal("some numbers may differ from others")
    truth = match.editor.constant(np.array(holds), DType.BOOL, match.root.output.name)
    return repeated(match, truth)
