"""LLVM IR as text: values, blocks and a builder that numbers values and never emits one twice.

No LLVM pass runs on kernels, so what the builder writes is what the code generator sees. A block
keeps its terminator apart from its lines: lines may be added to a block long after the builder
has moved on, which is how index arithmetic moves out of loops.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dlc.core.types import NARROW_FLOATS, NARROW_INTS, DType


class Val(NamedTuple):
    """An SSA value or a constant: its spelling, its LLVM element type, its lanes (0: a scalar)."""

    ref: str
    elem: str
    lanes: int = 0

    @property
    def type(self) -> str:
        """The LLVM type."""
        return f"<{self.lanes} x {self.elem}>" if self.lanes else self.elem

    def __str__(self) -> str:
        return f"{self.type} {self.ref}"


# The element type of values in registers: small floats are computed as f32, bools are i1.
VALUE_TYPES = {
    DType.BOOL: "i1", DType.INDEX: "i64", DType.F16: "float", DType.BF16: "float",
    DType.F32: "float", DType.F64: "double",
    DType.I8: "i8", DType.I16: "i16", DType.I32: "i32", DType.I64: "i64",
    DType.U8: "i8", DType.U16: "i16", DType.U32: "i32", DType.U64: "i64",
    **dict.fromkeys(NARROW_INTS, "i8"), **dict.fromkeys(NARROW_FLOATS, "float"),
}  # fmt: skip
# The element type in memory.
MEMORY_TYPES = VALUE_TYPES | {DType.BOOL: "i8", DType.F16: "half", DType.BF16: "i16"}
MEMORY_TYPES |= dict.fromkeys(NARROW_FLOATS, "i8")
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
BITS |= {"half": 16, "bfloat": 16, "float": 32, "double": 64}


def type_of(elem: str, lanes: int) -> str:
    """The LLVM type of `lanes` elements; 0 lanes are a scalar."""
    return f"<{lanes} x {elem}>" if lanes else elem


def literal(value: int | float | bool, elem: str) -> str:
    """A scalar constant as LLVM spells it."""
    if elem == "i1":
        return "true" if value else "false"
    if elem not in ("float", "double"):
        bits = BITS[elem]
        whole = int(value) & ((1 << bits) - 1)
        return str(whole - (1 << bits) if whole >> (bits - 1) else whole)
    number = float(value)
    if elem == "float":
        number = round_f32(number)
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"


def round_f32(number: float) -> float:
    """The float32 nearest to a number; beyond the range it is an infinity."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")
    return rounded


def constant(value: int | float | bool, elem: str, lanes: int = 0) -> Val:
    """A constant, the same in every lane."""
    text = literal(value, elem)
    return Val(f"splat ({elem} {text})" if lanes else text, elem, lanes)


def lane_constants(values: Sequence[int | float], elem: str) -> Val:
    """A vector constant with a value of its own in each lane."""
    body = ", ".join(f"{elem} {literal(v, elem)}" for v in values)
    return Val(f"<{body}>", elem, len(values))


def poison(elem: str, lanes: int = 0) -> Val:
    """A value nobody may look at."""
    return Val("poison", elem, lanes)


@dataclass(slots=True)
class Block:
    """A basic block in the making; `early` is the index arithmetic that comes before its lines."""

    label: str
    phis: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    end: str = "unreachable"

    def text(self) -> str:
        """The block as IR text."""
        return "\n  ".join([f"{self.label}:", *self.phis, *self.early, *self.lines, self.end])


@dataclass(slots=True)
class Level:
    """A loop, or the function itself: where arithmetic on its variable is placed.

    `var` is the variable of the loop. Pointers may move with it where its first value, `begin`, is
    told; `pointers` are those that do: the pointer, its first value, the bytes to the next one.
    """

    block: Block
    scope: int
    var: str = ""
    begin: Val | None = None
    pointers: list[tuple[Val, Val, int]] = field(default_factory=list)


class Declarations:
    """The external functions a module uses."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}
        self.globals: list[str] = []

    def use(self, name: str, result: str, operands: str) -> None:
        """Declare a function once."""
        if name not in self.lines:
            self.lines[name] = f"declare {result} @{name}({operands})"

    def text(self) -> str:
        """All declarations and globals."""
        return "\n".join([*self.globals, *self.lines.values()])


class Builder:
    """Writes one function: numbers its values, keeps its blocks, knows what is already computed.

    A *scope* is a region of code whose values may be reused until it ends: a loop body, a branch.
    A *level* is a scope with a variable (or the function): pure index arithmetic is placed at the
    start of the outermost level that has all its operands.
    """

    def __init__(self, declarations: Declarations) -> None:
        self.declarations = declarations
        self.blocks: list[Block] = []
        self.count = 0
        self._known: dict[Hashable, Val] = {}
        self._scopes: list[list[Hashable]] = [[]]
        self.allocas: list[str] = []
        self.entry = self.block("entry")
        start = self.block("start")
        self.entry.end = f"br label %{start.label}"
        self.current = start
        self.levels = [Level(self.entry, 0)]

    # Names, blocks and control flow.

    def name(self) -> str:
        """A fresh value name."""
        self.count += 1
        return f"%v{self.count}"

    def block(self, hint: str) -> Block:
        """A fresh block; the builder does not move."""
        found = Block(f"{hint}.{len(self.blocks)}")
        self.blocks.append(found)
        return found

    def enter(self, block: Block) -> None:
        """Continue at the end of `block`."""
        self.current = block

    def jump(self, target: Block) -> None:
        """End the current block with a jump."""
        self.current.end = f"br label %{target.label}"

    def branch(self, cond: Val, then: Block, other: Block, *, rare: bool = False) -> None:
        """End the current block with a two-way branch, which if `rare` hardly goes to `then`."""
        hint = ""
        if rare:
            hint = ", !prof !0"
            self.declarations.lines["!0"] = '!0 = !{!"branch_weights", i32 1, i32 1000}'
        self.current.end = f"br i1 {cond.ref}, label %{then.label}, label %{other.label}{hint}"

    def fork(self, cond: Val, ways: Sequence[Callable[[], Val]]) -> list[tuple[Val, Block]]:
        """Emit two ways to a value, of which a run takes one: what each gives, and where it ends.

        The builder goes on behind both, where the values meet in a phi.
        """
        arms = [self.block("then"), self.block("else")]
        after = self.block("join")
        self.branch(cond, *arms)
        found = []
        for block, emit in zip(arms, ways, strict=True):
            self.enter(block)
            self.open_scope()
            value = emit()
            self.close_scope()
            found.append((value, self.current))
            self.jump(after)
        self.enter(after)
        return found

    def when(self, cond: Val, emit: Callable[[], Val]) -> Val:
        """Evaluate something only where a scalar condition holds; else it is undefined."""
        before, then, after = self.current, self.block("on"), self.block("go")
        self.branch(cond, then, after)
        self.enter(then)
        self.open_scope()
        value = emit()
        self.close_scope()
        end = self.current
        self.jump(after)
        self.enter(after)
        if value.ref == "":
            return value
        return self.phi([(value, end), (poison(value.elem, value.lanes), before)])

    def phi(self, incoming: list[tuple[Val, Block]]) -> Val:
        """A phi at the start of the current block."""
        first = incoming[0][0]
        if all(value.ref == first.ref for value, _ in incoming):
            return first
        name = self.name()
        self.current.phis.append(phi_text(name, first, incoming))
        return Val(name, first.elem, first.lanes)

    # Scopes and levels.

    def open_scope(self) -> None:
        """Start a region; what is computed in it is forgotten when it ends."""
        self._scopes.append([])

    def close_scope(self) -> None:
        """End the innermost region."""
        for key in self._scopes.pop():
            del self._known[key]

    def open_level(self, block: Block, var: str = "", begin: Val | None = None) -> None:
        """Start the region of a loop, see `Level`, whose index arithmetic goes into `block`."""
        self._scopes.append([])
        self.levels.append(Level(block, len(self._scopes) - 1, var, begin))

    def close_level(self) -> None:
        """End the region of the innermost loop."""
        self.levels.pop()
        self.close_scope()

    def recall(self, key: Hashable) -> Val | None:
        """What was remembered under `key`, if it is available here."""
        return self._known.get(key)

    def remember(self, key: Hashable, value: Val, scope: int = -1) -> Val:
        """Keep a value for later use inside the given scope."""
        if key not in self._known:
            self._scopes[scope].append(key)
        self._known[key] = value
        return value

    # Instructions.

    def line(self, text: str) -> None:
        """An instruction without a result."""
        self.current.lines.append(text)

    def fresh(self, text: str, elem: str, lanes: int = 0) -> Val:
        """An instruction that is not pure, or never repeated."""
        self.count += 1
        name = f"%v{self.count}"
        self.current.lines.append(f"{name} = {text}")
        return Val(name, elem, lanes)

    def op(self, text: str, elem: str, lanes: int = 0) -> Val:
        """A pure instruction; the same text gives the same value."""
        found = self._known.get(text)
        if found is None:
            found = self.remember(text, self.fresh(text, elem, lanes))
        return found

    def index_op(self, level: int, text: str, elem: str = "i64") -> Val:
        """A pure instruction on index values, placed at the start of a level."""
        # One that an inner level has is of no use here: it does not dominate this place.
        for above in range(level + 1):
            found = self._known.get(("index", above, text))
            if found is not None:
                return found
        at = self.levels[level]
        self.count += 1
        name = f"%v{self.count}"
        at.block.early.append(f"{name} = {text}")
        return self.remember(("index", level, text), Val(name, elem), at.scope)

    def local_op(self, text: str, elem: str) -> Val:
        """A pure instruction that each block repeats, because it becomes part of others there.

        LLVM selects instructions block by block: a displacement that another block adds would be
        an addition and a register.
        """
        key = (self.current.label, text)
        found = self._known.get(key)
        if found is None:
            found = self.remember(key, self.fresh(text, elem))
        return found

    def moving(self, level: int, begin: Val, step: int) -> Val:
        """A pointer that is `begin` in the first iteration of a loop and moves by `step` bytes."""
        key = ("moving", level, begin.ref, step)
        found = self._known.get(key)
        if found is None:
            at = self.levels[level]
            found = self.remember(key, Val(self.name(), "ptr"), at.scope)
            at.pointers.append((found, begin, step))
        return found

    def step(self, start: Block, value: Val, first: Val, op: str, step: int) -> Val:
        """Define `value` in the innermost loop, which `start` enters: `first`, then by steps.

        The loop's body ends here; what `value` is in the next iteration.
        """
        following = self.fresh(f"{op} {value}, {step}", value.elem)
        incoming = [(first, start), (following, self.current)]
        self.levels[-1].block.phis.append(phi_text(value.ref, value, incoming))
        return following

    def call(self, name: str, result: Val, *operands: Val, flags: str = "") -> Val:
        """A call of a pure intrinsic; `result` gives the type only."""
        self.declarations.use(name, result.type, ", ".join(o.type for o in operands))
        text = f"call {flags}{result.type} @{name}({', '.join(map(str, operands))})"
        return self.op(text, result.elem, result.lanes)

    def alloca(self, text: str) -> str:
        """Stack space for the whole call of the function."""
        name = self.name()
        self.allocas.append(f"{name} = alloca {text}")
        return name

    def body(self) -> str:
        """All blocks as IR text."""
        self.entry.early[:0] = self.allocas
        self.allocas = []
        return "\n".join(block.text() for block in self.blocks)


def phi_text(name: str, like: Val, incoming: list[tuple[Val, Block]]) -> str:
    """A phi instruction."""
    pairs = ", ".join(f"[ {value.ref}, %{block.label} ]" for value, block in incoming)
    return f"{name} = phi {like.type} {pairs}"


def mangled(elem: str, lanes: int) -> str:
    """A type as the names of intrinsics spell it: `v16f32`."""
    short = {"half": "f16", "float": "f32", "double": "f64"}.get(elem, elem)
    return f"v{lanes}{short}" if lanes else short
