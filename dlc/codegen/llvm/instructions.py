"""Hardware instructions: an `Invoke` becomes its meaning, written out where it stands.

LLVM's code generator finds the machine instruction for the patterns it knows; where it does not,
the kernel is still right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dlc.core.errors import CodegenError
from dlc.schedule.instruction import INSTRUCTIONS
from dlc.schedule.loop import Block, For, If, Invoke, LoopKind, Stmt, Store, substitute
from dlc.te.expr import Expr, Load, Var
from dlc.te.transform import rewrite

Region = tuple[str, tuple[Expr, ...]]


def expand(stmt: Invoke, number: int) -> Stmt:
    """The meaning of an instruction on the regions it is invoked for.

    `number` tells this invocation from others in the same function; loops are named by it.

    Raises:
        CodegenError: there is no such instruction.
    """
    if stmt.instruction not in INSTRUCTIONS:
        raise CodegenError(
            stage="code generation",
            unit=f"instruction '{stmt.instruction}'",
            reason="it is not declared",
        )
    meaning = INSTRUCTIONS[stmt.instruction].func
    regions = {p.name: r for p, r in zip(meaning.params, stmt.operands, strict=True)}
    return _place(meaning.body, regions, f"{stmt.instruction}_{number}_")


def _place(stmt: Stmt, regions: Mapping[str, Region], prefix: str) -> Stmt:
    """The same statement with buffers replaced by regions and loops renamed and written out."""
    match stmt:
        case Store(buffer, index, value):
            name, at = _element(regions[buffer], tuple(_expr(i, regions) for i in index))
            return Store(name, at, _expr(value, regions))
        case If(cond, body):
            return If(_expr(cond, regions), _place(body, regions, prefix))
        case Block(stmts):
            return Block(tuple(_place(s, regions, prefix) for s in stmts))
        case For(var, _, _, body):
            name = prefix + var  # first of all: the regions may read a variable of the old name
            renamed = _place(substitute(body, {var: Var(name)}), regions, prefix)
            return replace(stmt, var=name, kind=LoopKind.UNROLL, body=renamed)
        case _:
            raise CodegenError(
                stage="code generation",
                unit=prefix.rstrip("_"),
                reason="its meaning allocates memory or invokes another instruction",
            )


def _element(region: Region, index: tuple[Expr, ...]) -> Region:
    """An element of a region, which covers the last dimensions of its buffer."""
    name, start = region
    outer = len(start) - len(index)
    inner = tuple(s + i for s, i in zip(start[outer:], index, strict=True))
    return name, (*start[:outer], *inner)


def _expr(expr: Expr, regions: Mapping[str, Region]) -> Expr:
    def visit(node: Expr) -> Expr:
        if isinstance(node, Load) and node.buffer in regions:
            name, at = _element(regions[node.buffer], node.index)
            return Load(name, at, node.dtype)
        return node

    return rewrite(expr, visit)
