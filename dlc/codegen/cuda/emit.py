"""A launch as CUDA C++ text: readable, over the functions and macros of `seam.cuh` alone.

The text is the same for a GPU and for the emulation on a CPU; only the seam differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import assert_never

from dlc.codegen.cuda.expr import MEMORY_TYPES, ExprPrinter
from dlc.codegen.cuda.names import with_safe_names
from dlc.core.errors import CodegenError
from dlc.core.types import DType
from dlc.schedule.gpu import (
    IndexCheck,
    Tail,
    block_loops,
    block_threads,
    grid,
    group_count,
    has_rare_work,
    is_barrier,
    is_commit,
    is_cooperative,
    member_count,
    shared_offsets,
    strides,
    tails,
    thread_loops,
    threads_of,
    waits_for,
)
from dlc.schedule.instruction import (
    ASYNC_COPIES,
    WARP_PRODUCTS,
    WARP_REDUCTIONS,
    AsyncCopy,
    WarpProduct,
    WarpReduction,
)
from dlc.schedule.loop import (
    Alloc,
    Block,
    Buffer,
    For,
    Func,
    If,
    Invoke,
    LoopKind,
    Scope,
    Stmt,
    Store,
    accumulation,
    allocs,
    dtypes,
)
from dlc.schedule.nest import is_scheduled
from dlc.schedule.text import print_type
from dlc.schedule.verify_gpu import shared_bytes, thread_dims
from dlc.te.affine import loop_bounds
from dlc.te.expr import Binary, BinOp, Cast, Const, Expr, Var
from dlc.te.simplify import simplify
from dlc.te.types import const_size

INDENT = "  "
Operand = tuple[str, tuple[Expr, ...]]
_INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Kernel:
    """The text of one launch, and how to launch it.

    The parameters of the C++ function are a pointer for each buffer of `func.params`, then the
    sizes, 64 bits each, then a pointer to memory for reports, of a launch that makes some. The grid
    has one dimension, the product of `grid`.
    """

    symbol: str
    func: Func
    text: str
    grid: tuple[Expr, ...]
    threads: int
    shared_bytes: int
    reports: bool = False


def emit_kernel(
    func: Func, symbol: str, ahead: Sequence[Buffer] = (), checks: Sequence[IndexCheck] = ()
) -> Kernel:
    """Print a verified launch, which asks for its inputs `ahead` before it waits for others.

    `checks` are of indices among its inputs; it looks for bad ones behind its own work.
    """
    threads = block_threads(func)
    shared = shared_bytes(func)
    assert shared is not None, "shared buffers have constant shapes"
    asked = [position for position, b in enumerate(func.inputs) if b in ahead]
    looked = [_Looked.of(func, check) for check in checks]
    text = _Printer(with_safe_names(func), threads, looked).kernel(symbol, shared, asked)
    return Kernel(symbol, func, text, grid(func), threads, shared, bool(checks))


@dataclass(frozen=True, slots=True)
class _Looked:
    """A check by positions: names may change."""

    indices: int  # among the inputs
    negative: bool
    limits: tuple[int, ...]  # among the sizes
    report: int

    @staticmethod
    def of(func: Func, check: IndexCheck) -> _Looked:
        indices = [b.name for b in func.inputs].index(check.indices)
        limits = tuple(map(func.sizes.index, check.limits))
        return _Looked(indices, check.negative, limits, func.sizes.index(check.report))

    @property
    def sizes(self) -> set[int]:
        return {*self.limits, self.report}


def why_not_printable(func: Func) -> str:
    """Why no GPU can run a function that is not scheduled for it yet, or ""."""
    if is_scheduled(func):
        return "it is steps in order"
    for name, dtype in dtypes(func).items():
        if dtype not in MEMORY_TYPES:
            return f"'{name}' holds {dtype}"
    return ""


def is_small(func: Func, apart: int = 0) -> bool:
    """Whether 32 bits hold every index of a launch; `apart` of its sizes are part of none."""
    buffers = [*func.params, *(a.buffer for a in allocs(func.body).values())]
    if len(func.sizes) > apart or not all(b.type.is_static for b in buffers):
        return False
    runs = [e.value for e in grid(func) if isinstance(e, Const)]
    largest = max((const_size(b.type.elems) for b in buffers), default=0)
    return largest <= _INT_MAX and prod(map(int, runs)) <= _INT_MAX // 1024


class _Printer:
    """Prints one launch."""

    def __init__(self, func: Func, threads: int, looked: Sequence[_Looked]) -> None:
        self.func = func
        self.threads = threads
        self.looked = looked
        self.dtypes = dtypes(func)
        self.buffers = {b.name: b for b in func.params}
        self.buffers |= {n: a.buffer for n, a in allocs(func.body).items()}
        self.index = "int" if is_small(func, sum(len(k.sizes) for k in looked)) else "i64"
        self.bounds: dict[str, tuple[Expr, Expr]] = {}
        self.exprs = ExprPrinter(self.element, self.bounds)
        self.private: dict[str, frozenset[int]] = {}  # dimensions that number threads

    # Buffers.

    def element(self, buffer: str, index: tuple[Expr, ...]) -> str:
        """The text of an element: buffers are dense and row-major."""
        return f"{buffer}[{self.place(buffer, index)}]"

    def place(self, buffer: str, index: tuple[Expr, ...]) -> str:
        """The text of an element's number."""
        shape = self.buffers[buffer].type.shape
        dims = [d for d in range(len(shape)) if d not in self.private.get(buffer, ())]
        flat: Expr = Const(0, DType.INDEX)
        for d in dims:
            flat = flat * shape[d] + index[d]
        return self.exprs.text(simplify(flat, self.bounds))

    def params(self) -> list[str]:
        """The parameters of the C++ function."""
        shared = {name for pair in self.func.in_place for name in pair}
        found: list[str] = []
        for position, buffer in enumerate(self.func.params):
            kind = MEMORY_TYPES[buffer.type.dtype]
            is_input = position < len(self.func.inputs)
            macro = "DLC_IN" if is_input else "DLC_OUT"
            macro = "DLC_SHARED_IN_PLACE" if buffer.name in shared and is_input else macro
            macro = "DLC_OUT_IN_PLACE" if buffer.name in shared and not is_input else macro
            found.append(f"{macro}({kind}, {buffer.name})")
        found += [f"i64 {size}" for size in self.func.sizes]
        return [*found, "DLC_REPORTS"] if self.looked else found

    # The kernel.

    def kernel(self, symbol: str, shared: int, asked: Sequence[int]) -> str:
        """The whole text; `asked` are the numbers of inputs to ask for ahead."""
        loops, body = block_loops(self.func)
        self.offsets, _ = shared_offsets(self.func)
        extents = " x ".join(str(e) for e in grid(self.func)) or "1"
        lines = [f"// {b.name}: {print_type(b.type)}" for b in self.func.params]
        lines.append(f"// {extents} blocks of {self.threads} threads, {shared} bytes shared")
        macro = "DLC_ROOMY_KERNEL" if has_rare_work(self.func) else "DLC_KERNEL"
        head = f"{macro}({symbol}, {self.threads})("
        lines.append(f"{head}{', '.join(self.params())}) {{")
        for buffer in (self.func.inputs[n] for n in asked):
            count = const_size(buffer.type.elems)
            lines.append(f"{INDENT}fetch_ahead({buffer.name}, {count});")
        lines.append(f"{INDENT}begin_launch();")
        lines += [INDENT + line for line in self.digits(loops)]
        lines += self.body(body, INDENT)
        lines += [INDENT + line for look in self.looked for line in self.look(look)]
        first = 0
        for tail in tails(self.func):
            lines += self.tail(tail, first)
            first += group_count(tail)
        return "\n".join([*lines, "}", ""])

    def look(self, looked: _Looked) -> list[str]:
        """The search for indices that lie outside, for each size of a row."""
        indices, sizes = self.func.inputs[looked.indices], self.func.sizes
        count = self.exprs.text(simplify(indices.type.elems))
        step, report = len(looked.limits), sizes[looked.report]
        return [
            f"check_indices<{'true' if looked.negative else 'false'}>({indices.name}, {count}, "
            f"{first}, {step}, {sizes[limit]}, dlc_reports, {report});"
            for first, limit in enumerate(looked.limits)
        ]

    def tail(self, tail: Tail, first: int) -> list[str]:
        """What the last block of each group goes on with; `first` is where its numbers begin."""
        group: Expr = Const(first, DType.INDEX)
        inner = 1
        for loop in reversed(tail.groups):
            group = group + Var(loop.var) * inner
            inner *= const_size(loop.extent)
        number = self.exprs.text(simplify(group, self.bounds))
        arrivals = self.func.outputs[-1].name
        test = f"last_block({arrivals}, {number}, {member_count(tail)})"
        return [f"{INDENT}if (!{test}) return;", *self.body(tail.body, INDENT)]

    def digits(self, loops: tuple[For, ...]) -> list[str]:
        """The variables of the block loops: digits of the block's number."""
        lines: list[str] = []
        for position, loop in enumerate(loops):
            self.bind(loop)
            inner: Expr = Const(1, DType.INDEX)
            for other in loops[position + 1 :]:
                inner = inner * other.extent
            text = f"{self.index}(DLC_BLOCK)"
            if inner != Const(1, DType.INDEX):
                text += f" / ({self.exprs.text(simplify(inner))})"
            if position:
                text += f" % ({self.exprs.text(loop.extent)})"
            lines.append(f"const {self.index} {loop.var} = {text};")
        return lines

    def bind(self, loop: For) -> None:
        self.bounds.update(loop_bounds({loop.var: loop.extent}))

    # What runs in a block.

    def body(self, stmt: Stmt, pad: str) -> list[str]:
        """Phases and what stands around them."""
        if is_barrier(stmt):
            return [f"{pad}barrier();"]
        if is_commit(stmt):
            return [f"{pad}commit_copies();"]
        if (groups := waits_for(stmt)) is not None:
            return [f"{pad}wait_copies<{groups}>();"]
        match stmt:
            case Block(stmts):
                return [line for s in stmts for line in self.body(s, pad)]
            case Alloc(buffer, scope, body) if self.is_of_block(stmt):
                return [pad + self.block_buffer(buffer, scope), *self.body(body, pad)]
            case For() if is_cooperative(stmt):
                return self.loop(stmt, pad, self.body)
            case If(cond, body) if is_cooperative(stmt):
                head = f"{pad}if ({self.exprs.text(simplify(cond, self.bounds))}) {{"
                return [head, *self.body(body, pad + INDENT), f"{pad}}}"]
            case _:
                return self.phase(stmt, pad)

    def is_of_block(self, stmt: Alloc) -> bool:
        return stmt.scope is Scope.SHARED or is_cooperative(stmt)

    def block_buffer(self, buffer: Buffer, scope: Scope) -> str:
        """The declaration of shared memory, or of the registers of one thread."""
        kind, shape = MEMORY_TYPES[buffer.type.dtype], buffer.type.static_shape
        if scope is Scope.SHARED:
            offset = self.offsets[buffer.name]
            return f"DLC_SHARED({kind}, {buffer.name}, {prod(shape)}, {offset});"
        self.private[buffer.name] = frozenset(thread_dims(self.func, buffer.name))
        own = [n for d, n in enumerate(shape) if d not in self.private[buffer.name]]
        return f"DLC_LOCAL({kind}, {buffer.name}, {prod(own)});"

    def phase(self, stmt: Stmt, pad: str) -> list[str]:
        """A nest of thread loops, or what the first thread does alone."""
        threads = threads_of(stmt)
        lines: list[str] = []
        for var, (stride, extent) in strides(thread_loops(stmt)).items():
            text = "DLC_THREAD" if stride == 1 else f"DLC_THREAD / {stride}"
            if stride * extent < threads:
                text += f" % {extent}"
            lines.append(f"const {self.index} {var} = {text if extent > 1 else '0'};")
        lines.reverse()
        body = self.stmt(stmt, pad + INDENT)
        guard = "{" if threads == self.threads else f"if (DLC_THREAD < {threads}) {{"
        return [f"{pad}{guard}", *(pad + INDENT + line for line in lines), *body, f"{pad}}}"]

    # What one thread runs.

    def stmt(self, stmt: Stmt, pad: str) -> list[str]:
        """A statement inside of a phase."""
        match stmt:
            case Store():
                return [pad + self.store(stmt)]
            case Block(stmts):
                return [line for s in stmts for line in self.stmt(s, pad)]
            case If(cond, body):
                head = f"{pad}if ({self.exprs.text(simplify(cond, self.bounds))}) {{"
                return [head, *self.stmt(body, pad + INDENT), f"{pad}}}"]
            case For(kind=LoopKind.THREAD | LoopKind.WARP):
                self.bind(stmt)
                return self.stmt(stmt.body, pad)
            case For():
                return self.loop(stmt, pad, self.stmt)
            case Alloc(buffer, _, body):
                kind, count = MEMORY_TYPES[buffer.type.dtype], prod(buffer.type.static_shape)
                head = f"{pad}DLC_LOCAL({kind}, {buffer.name}, {count});"
                return [head, *self.stmt(body, pad)]
            case Invoke(name, operands):
                return [pad + self.invoke(name, operands)]
            case _:
                assert_never(stmt)

    def invoke(self, name: str, operands: tuple[Operand, ...]) -> str:
        """An instruction as a call of the seam."""
        if name in WARP_PRODUCTS:
            return self.warp_product(WARP_PRODUCTS[name], operands)
        if name in WARP_REDUCTIONS:
            return self.warp_reduction(WARP_REDUCTIONS[name], operands)
        if name in ASYNC_COPIES:
            return self.copy(ASYNC_COPIES[name], operands)
        raise CodegenError(
            stage="the CUDA printer",
            unit=self.func.name,
            reason=f"there is no emitter for the instruction '{name}'",
        )

    def warp_product(self, known: WarpProduct, operands: tuple[Operand, ...]) -> str:
        """The product that a warp computes: factors in shared memory, sums in registers."""
        places = [f"{name}, {self.place(name, index)}" for name, index in operands]
        pitches = [self.exprs.text(self.buffers[name].type.shape[-1]) for name, _ in operands[:2]]
        (a, b, c), (lda, ldb) = places, pitches
        name = "multiply_tf32" if known.dtype == "tf32" else "multiply_tiles"
        name = "multiply_bytes" if known.of_bytes else name
        return f"{name}<{known.rows}, {known.columns}>({c}, {a}, {lda}, {b}, {ldb});"

    def warp_reduction(self, known: WarpReduction, operands: tuple[Operand, ...]) -> str:
        """What a warp makes of a value of each thread."""
        (values, own), (target, index) = operands
        place = self.place(target, index)
        return f"warp_{known.kind}({target}, {place}, {self.element(values, own)});"

    def copy(self, known: AsyncCopy, operands: tuple[Operand, ...]) -> str:
        """A copy of neighbouring elements to shared memory."""
        source, target = (f"{name}, {self.place(name, index)}" for name, index in operands)
        return f"copy_async<{known.count}>({target}, {source});"

    def loop(self, loop: For, pad: str, inner: Callable[[Stmt, str], list[str]]) -> list[str]:
        """A loop that one thread, or all of a block, run in order."""
        self.bind(loop)
        extent = self.exprs.text(simplify(loop.extent))
        head = f"for ({self.index} {loop.var} = 0; {loop.var} < {extent}; ++{loop.var}) {{"
        lines = [pad + head, *inner(loop.body, pad + INDENT), f"{pad}}}"]
        if loop.kind in (LoopKind.UNROLL, LoopKind.VECTOR):
            lines.insert(0, f"{pad}DLC_UNROLL")
        return lines

    def store(self, stmt: Store) -> str:
        """`buffer[index] = value;`, or `+=`."""
        target = self.element(stmt.buffer, stmt.index)
        dtype = self.dtypes[stmt.buffer]
        value = stmt.value
        if accumulation(stmt) is BinOp.ADD and dtype in (DType.F32, DType.F64):
            assert isinstance(value, Binary)
            return f"{target} += {self.value(value.b)};"
        if dtype in (DType.F16, DType.BF16):
            inner = value.a if isinstance(value, Cast) else value
            return f"{target} = {dtype}({self.exprs.text(simplify(inner, self.bounds))});"
        text = self.value(value)
        return f"{target} = {text};"

    def value(self, expr: Expr) -> str:
        return self.exprs.text(simplify(expr, self.bounds))
