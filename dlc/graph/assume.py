"""What operators take for granted of sizes that are known only at run time.

`infer` refuses what surely does not fit. What it cannot decide it assumes, and says so here:
whoever collects the assumptions can check them before the first kernel relies on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from dlc.te.expr import Const, Expr, equal, index
from dlc.te.simplify import simplify, surely_differ, surely_less

_collected: ContextVar[list[Expr] | None] = ContextVar("_collected", default=None)


@contextmanager
def collect_assumptions() -> Iterator[list[Expr]]:
    """The conditions that are assumed inside, as they come up."""
    found: list[Expr] = []
    token = _collected.set(found)
    try:
        yield found
    finally:
        _collected.reset(token)


def assume(cond: Expr) -> None:
    """Take a condition for granted; one that is surely true is not worth a word."""
    collected = _collected.get()
    if collected is None:
        return
    cond = simplify(cond)
    if not (isinstance(cond, Const) and cond.value):
        collected.append(cond)


def differs(a: Expr, b: Expr | int) -> bool:
    """Whether two sizes surely differ; else they are assumed to be equal."""
    if surely_differ(a, b):
        return True
    if a != b:
        assume(equal(a, b))
    return False


def is_below(a: Expr | int, b: Expr | int) -> bool:
    """Whether surely `a < b`; else `b <= a` is assumed."""
    if surely_less(a, b):
        return True
    assume(index(b) <= a)
    return False
