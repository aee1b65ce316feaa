"""Products of float32 as products of bf16 or TF32, for the matrix engines of a GPU.

    high      a * b -> a0 * b0 + a0 * b1 + a1 * b0, where a0 = bf16(a) and a1 = bf16(a - a0)
    tf32      a * b -> tf32(a) * tf32(b)
    medium    a * b -> a0 * b0

This changes results, so it happens once, when a model is lowered, and only where the user asked for
it (`precision=`) and a rule takes the product to the engines. The sum runs over the three products
as over one more dimension. An infinite operand has no second part: its products are NaN where
float32 would give an infinity, at `high`. Three products of TF32 would be right to 22 bits, but
take twice the instructions of three of bf16, whose 16 bits are what `high` promises.

Source: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For
Higher-Precision Computations" (2019).
"""

from __future__ import annotations

from dataclasses import replace

from dlc.core.target import Target
from dlc.core.types import DType
from dlc.schedule.loop import For, Func, LoopKind, Stmt, Store, loops, rewrite
from dlc.schedule.nest import Stage, stages
from dlc.schedule.primitive import check_fresh
from dlc.schedule.program import Program
from dlc.schedule.rules import (
    gpu_attend,
    gpu_matrix,
    gpu_norm,
    gpu_online,
    gpu_repair,
    prepare,
)
from dlc.schedule.trace import Trace
from dlc.schedule.verify import verify_func
from dlc.te.expr import (
    Binary,
    BinOp,
    Cast,
    Expr,
    Select,
    UnOp,
    Var,
    binary,
    cast,
    index,
    unary,
)

PRODUCTS = {"high": 3, "tf32": 1, "medium": 1}


def round_program(program: Program, target: Target, precision: str) -> Program:
    """The program with products of bf16 where a GPU has engines for them."""
    if target.gpu is None or precision not in PRODUCTS:
        return program
    kernels = tuple(round_products(f, target, precision) for f in program.kernels)
    return replace(program, kernels=kernels)


def round_products(func: Func, target: Target, precision: str) -> Func:
    """The function with its sums of float32 products rounded, or as it is.

    `precision` is a key of `PRODUCTS`.
    """
    sums = [s for s in stages(func) if _is_plain(s)]
    if not sums:
        return func
    result = func
    for number, total in enumerate(sums):
        result = _rounded(result, total, precision, f"part_{number}")
    verify_func(result, when="after round_products")
    trace = Trace(result)
    prepare(trace, target)
    return result if _is_for_engine(trace.func, target) else func


def _is_for_engine(func: Func, target: Target) -> bool:
    """Whether a rule takes the products of a prepared function to the engines."""
    attention = gpu_online.match(func, target) or gpu_attend.match(func, target)
    if attention is not None:
        return attention.on_engine
    repaired = gpu_repair.match(func, target)
    if repaired is not None:
        return repaired.on_engine
    return any(r.match(func, target) is not None for r in (gpu_matrix, gpu_norm))


def _is_plain(stage: Stage) -> bool:
    """Whether a stage sums products of float32."""
    factors = stage.factors
    if factors is None or not stage.is_reduction or not stage.inner:
        return False
    plain = all(f.dtype is DType.F32 and not isinstance(f, Cast) for f in factors)
    return plain and factors[0] != factors[1]


def _rounded(func: Func, total: Stage, precision: str, part: str) -> Func:
    count = PRODUCTS[precision]
    assert total.factors is not None
    assert isinstance(total.store.value, Binary)
    a, b = total.factors
    which = Var(part)
    if count == 1:
        left, right = (unary(UnOp.TF32, x) if precision == "tf32" else _wide(x) for x in (a, b))
    else:
        check_fresh("round_products", func, (part,))
        left = _wide(Select(which < index(2), a, _rest(a)))
        right = _wide(Select(_is_one(which), _rest(b), b))
    product = binary(BinOp.MUL, left, right)
    store = replace(total.store, value=binary(BinOp.ADD, total.store.value.a, product))
    top = total.inner[0].var

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Store):
            return store if stmt == total.store else stmt
        if isinstance(stmt, For) and stmt.var == top and count > 1:
            return For(part, index(count), LoopKind.SERIAL, stmt)
        return stmt

    assert top in loops(func.body), "the loops of a stage are those of its function"
    return replace(func, body=rewrite(func.body, visit))


def _is_one(which: Expr) -> Expr:
    return Binary(BinOp.EQ, which, index(1))


def _wide(value: Expr) -> Expr:
    """A number rounded to bf16."""
    return cast(DType.F32, cast(DType.BF16, value))


def _rest(value: Expr) -> Expr:
    """What rounding leaves over."""
    return binary(BinOp.SUB, value, _wide(value))
