"""Where the LOCAL buffers of a function lie; those that never live together share bytes."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from dlc.schedule.loop import Alloc, Block, For, If, Invoke, LoopKind, Scope, Stmt, Store
from dlc.te.expr import ZERO, Const, Expr, maximum
from dlc.te.simplify import canonical

ALIGNMENT_BYTES = 64
STACK_LIMIT_BYTES = 16 * 1024


@dataclass(slots=True)
class Frame:
    """Byte offsets of buffers, and the bytes of the whole."""

    offsets: dict[str, Expr] = field(default_factory=dict)
    bytes: Expr = ZERO

    @property
    def on_stack(self) -> bool:
        """Whether the frame is small enough for the stack."""
        return isinstance(self.bytes, Const) and int(self.bytes.value) <= STACK_LIMIT_BYTES


def plan_frame(body: Stmt, outlined: Container[str]) -> Frame:
    """Place the LOCAL buffers of a body, except those inside the outlined loops."""
    frame = Frame()
    frame.bytes = _place(body, ZERO, 1, outlined, frame)
    return frame


def _place(stmt: Stmt, at: Expr, lanes: int, outlined: Container[str], frame: Frame) -> Expr:
    """Note the offsets of all buffers in `stmt`; return where the bytes they use end."""
    match stmt:
        case Store() | Invoke():
            return at
        case If(_, body):
            return _place(body, at, lanes, outlined, frame)
        case For(var, extent, kind, body):
            if var in outlined:
                return at
            if kind is LoopKind.VECTOR and isinstance(extent, Const):
                lanes = int(extent.value)
            return _place(body, at, lanes, outlined, frame)
        case Block(stmts):
            end = at
            for child in stmts:
                end = larger(end, _place(child, at, lanes, outlined, frame))
            return end
        case Alloc(buffer, Scope.LOCAL, body):
            frame.offsets[buffer.name] = at
            used = buffer.type.elems * (buffer.type.dtype.size_bytes * lanes)
            return _place(body, canonical(at + _round_up(used)), lanes, outlined, frame)
        case Alloc(_, _, body):
            return _place(body, at, lanes, outlined, frame)


def _round_up(size_bytes: Expr) -> Expr:
    whole = canonical(size_bytes + (ALIGNMENT_BYTES - 1))
    return canonical(whole // ALIGNMENT_BYTES * ALIGNMENT_BYTES)


def larger(a: Expr, b: Expr) -> Expr:
    """max(a, b) of two sizes."""
    return a if a == b else canonical(maximum(a, b))
