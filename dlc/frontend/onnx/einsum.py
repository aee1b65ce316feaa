"""The converter of Einsum: it multiplies two by two, as matrices where that can be.

Source: https://onnx.ai/onnx/operators/onnx__Einsum.html
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from string import ascii_letters

from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, transpose
from dlc.graph.graph import Value
from dlc.graph.ops.matmul import Einsum, MatMul
from dlc.te.expr import ONE, Expr
from dlc.te.simplify import surely_equal
from dlc.te.types import const_or

_ASSUMED = 64  # of a size that only a run knows


@converter("Einsum", since=12)
def convert_einsum(ctx: Context, *operands: Value, equation: str) -> Value:
    """Sums of products, as the equation says."""
    terms, result = _explicit(ctx, equation, [v.type.rank for v in operands])
    left = list(zip(operands, terms, strict=True))
    while len(left) > 2:
        i, j = min(
            itertools.combinations(range(len(left)), 2), key=lambda ij: _work(left, result, *ij)
        )
        kept = _kept(left, result, i, j)
        made = _contracted(ctx, (left[i], left[j]), kept)
        left = [*(other for k, other in enumerate(left) if k not in (i, j)), (made, kept)]
    return _contracted(ctx, left, result)


_Operands = Sequence[tuple[Value, str]]


def _kept(operands: _Operands, result: str, i: int, j: int) -> str:
    """The letters of two operands that the result or another operand has."""
    others = (term for k, (_, term) in enumerate(operands) if k not in (i, j))
    needed = {*result, *itertools.chain(*others)}
    return "".join(c for c in dict.fromkeys(operands[i][1] + operands[j][1]) if c in needed)


def _work(operands: _Operands, result: str, i: int, j: int) -> tuple[int, int]:
    """How many products two operands have, and how many sums."""
    sizes = {
        letter: const_or(size, _ASSUMED)
        for value, term in (operands[i], operands[j])
        for letter, size in zip(term, value.type.shape, strict=True)
    }
    kept = (sizes[c] for c in _kept(operands, result, i, j))
    return math.prod(sizes.values()), math.prod(kept)


def _contracted(ctx: Context, operands: _Operands, result: str) -> Value:
    """The sum of the products of one or two operands."""
    values, terms = [v for v, _ in operands], [term for _, term in operands]
    if len(values) == 2:
        made = _as_matmul(ctx, values, terms, result)
        if made is not None:
            return made
    return ctx.call(Einsum(equation=f"{','.join(terms)}->{result}"), *values)


def _explicit(ctx: Context, equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each operand and of the result, ellipses and the result spelled out."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        ctx.refuse(f"equation '{equation}' has {len(terms)} terms for {len(ranks)} operands")
    free = [c for c in ascii_letters if c not in equation]
    hidden = [rank - len(t.replace("...", "")) for t, rank in zip(terms, ranks, strict=True)]
    widest = max((h for t, h in zip(terms, hidden, strict=True) if "..." in t), default=0)
    if min(hidden) < 0 or widest > len(free):
        ctx.refuse(f"equation '{equation}' does not fit operands of rank {list(ranks)}")
    dots = "".join(free[:widest])
    terms = [t.replace("...", dots[widest - h :]) for t, h in zip(terms, hidden, strict=True)]
    if any(len(t) != rank for t, rank in zip(terms, ranks, strict=True)):
        ctx.refuse(f"equation '{equation}' does not fit operands of rank {list(ranks)}")
    if arrow:
        return terms, right.replace("...", dots)
    counts = Counter("".join(terms))
    named = sorted(c for c, n in counts.items() if n == 1 and c not in dots)
    return terms, dots + "".join(named)


def _as_matmul(
    ctx: Context, operands: Sequence[Value], terms: Sequence[str], result: str
) -> Value | None:
    """A product of matrices, if each letter is summed, kept from one, or shared by all three."""
    (a, b), (left, right) = operands, terms
    for term in (*terms, result):
        if len(set(term)) != len(term):
            return None
    shared = [c for c in left if c in right]
    batch = [c for c in shared if c in result]
    summed = [c for c in shared if c not in result]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    if sorted(result) != sorted([*batch, *rows, *columns]) or not summed:
        return None
    size = dict(zip(left, a.type.shape, strict=True)) | dict(zip(right, b.type.shape, strict=True))
    if not all(
        surely_equal(n, size[c]) for c, n in zip(left, a.type.shape, strict=True)
    ):  # a size 1 would broadcast
        return None
    m, k, n = (_product(size, letters) for letters in (rows, summed, columns))
    outer = [size[c] for c in batch]
    a = transpose(ctx, a, [left.index(c) for c in (*batch, *rows, *summed)])
    b = transpose(ctx, b, [right.index(c) for c in (*batch, *summed, *columns)])
    y = ctx.call(MatMul(), reshape_to(ctx, a, [*outer, m, k]), reshape_to(ctx, b, [*outer, k, n]))
    made = [*batch, *rows, *columns]
    y = reshape_to(ctx, y, [size[c] for c in made])
    return transpose(ctx, y, [made.index(c) for c in result])


def _product(size: dict[str, Expr], letters: Sequence[str]) -> Expr:
    return math.prod((size[c] for c in letters), start=ONE)
