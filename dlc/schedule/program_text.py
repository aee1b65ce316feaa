"""Host program text: the kernels, then the program that calls them; a subset of Python's syntax.

def main(n: size(1, 32), x: f32[n, 3], *, y: f32[n, 3]):
w = const(f32[3])
arena(640, n * 12)
t = place(f32[n, 3], 1)
scale(n, x, w, t)
check(n < 9, "too many rows")
within(k, n, True, "an index lies outside")
runtime("concat", n, a, b, c)
k: size = bind(index(count[0]), "there are too few rows")
r = allocate(f32[k, 3])
release(r)
write(count, 0, n + 1)
c = local(i64[2])
fetch(count, 0, 1)
s = slot()
put(s, r)
v = take(s, f32[k, 3])
for i in range(k, count[0] < i64(9)):
provide(y)
for i in range(k):
...
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NoReturn, assert_never

from dlc.core.errors import UserError
from dlc.core.types import DType
from dlc.schedule.loop import Buffer, Func
from dlc.schedule.program import (
    Allocate,
    BindSize,
    CallKernel,
    CallRuntime,
    Check,
    CheckRange,
    Copy,
    Fetch,
    HostIf,
    HostLoop,
    HostStmt,
    Local,
    Place,
    Program,
    Provide,
    Put,
    Release,
    SizeVar,
    Slot,
    Take,
    View,
    WriteSize,
)
from dlc.schedule.runtime_function import FUNCTIONS
from dlc.schedule.text import INDENT, parse_buffer, parse_def, print_func, print_type
from dlc.te.expr import ZERO
from dlc.te.text import ExprParser, parse_type, print_expr
from dlc.te.types import TensorType


def print_program(program: Program) -> str:
    """Write a program with its kernels; `parse_program` reads it back."""
    params = [f"{s.name}: {_range(s)}" for s in program.sizes]
    params += [f"{b.name}: {print_type(b.type)}" for b in program.inputs]
    if program.outputs:
        params += ["*", *(f"{b.name}: {print_type(b.type)}" for b in program.outputs)]
    lines = [f"def {program.name}({', '.join(params)}):"]
    lines += [f"{INDENT}{b.name} = const({print_type(b.type)})" for b in program.constants]
    lines += [f"{INDENT}arena({', '.join(map(print_expr, program.arena))})"]
    lines += _lines(program.body, INDENT)
    return "\n".join([*map(print_func, program.kernels), "\n".join(lines) + "\n"])


def _range(size: SizeVar) -> str:
    if size.maximum is not None:
        return f"size({size.minimum}, {size.maximum})"
    return f"size({size.minimum})" if size.minimum else "size"


def _lines(stmts: Iterable[HostStmt], pad: str) -> list[str]:
    return [line for stmt in stmts for line in _stmt(stmt, pad)]


def _stmt(stmt: HostStmt, pad: str) -> list[str]:  # noqa: C901 - a case per statement
    match stmt:
        case Place(buffer, region, offset):
            where = "" if offset == ZERO else f", {print_expr(offset)}"
            return [f"{pad}{buffer.name} = place({print_type(buffer.type)}, {region}{where})"]
        case View(buffer, source, offset):
            where = "" if offset == ZERO else f", {print_expr(offset)}"
            return [f"{pad}{buffer.name} = view({source}, {print_type(buffer.type)}{where})"]
        case CallKernel(kernel, sizes, buffers, _):
            return [f"{pad}{kernel}({', '.join([*map(print_expr, sizes), *buffers])})"]
        case CallRuntime(function, sizes, buffers):
            given = [repr(function), *map(print_expr, sizes), *buffers]
            return [f"{pad}runtime({', '.join(given)})"]
        case Copy(target, source):
            return [f"{pad}copy({target}, {source})"]
        case Check(cond, message):
            return [f"{pad}check({print_expr(cond)}, {message!r})"]
        case CheckRange(buffer, sizes, negative, message):
            given = [buffer, *map(print_expr, sizes), repr(negative), repr(message)]
            return [f"{pad}within({', '.join(given)})"]
        case Allocate(buffer):
            return [f"{pad}{buffer.name} = allocate({print_type(buffer.type)})"]
        case Release(name):
            return [f"{pad}release({name})"]
        case Provide(name):
            return [f"{pad}provide({name})"]
        case BindSize(name, value, message):
            return [f"{pad}{name}: size = bind({print_expr(value)}, {message!r})"]
        case WriteSize(name, index, value):
            return [f"{pad}write({name}, {index}, {print_expr(value)})"]
        case Local(buffer):
            return [f"{pad}{buffer.name} = local({print_type(buffer.type)})"]
        case Fetch(name, first, count):
            return [f"{pad}fetch({name}, {first}, {count})"]
        case Slot(name):
            return [f"{pad}{name} = slot()"]
        case Put(slot, name):
            return [f"{pad}put({slot}, {name})"]
        case Take(buffer, slot):
            return [f"{pad}{buffer.name} = take({slot}, {print_type(buffer.type)})"]
        case HostIf(cond, then, other):
            lines = [f"{pad}if {print_expr(cond)}:", *_body(then, pad)]
            return [*lines, f"{pad}else:", *_body(other, pad)] if other else lines
        case HostLoop(var, extent, body, go) if go is not None:
            head = f"{pad}for {var} in range({print_expr(extent)}, {print_expr(go)}):"
            return [head, *_body(body, pad)]
        case HostLoop(var, extent, body):
            return [f"{pad}for {var} in range({print_expr(extent)}):", *_body(body, pad)]
        case _:
            assert_never(stmt)


def _body(stmts: tuple[HostStmt, ...], pad: str) -> list[str]:
    return _lines(stmts, pad + INDENT) or [f"{pad}{INDENT}pass"]


def parse_program(text: str) -> Program:
    """Read a program: its kernels, then the program itself.

    Raises:
        UserError: the text is not a host program; the message names the line.
    """
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise UserError(detail=f"not program text, line {error.lineno}: {error.msg}") from error
    if not module.body:
        raise UserError(detail="program text must hold at least one 'def'")
    for node in module.body:
        if not isinstance(node, ast.FunctionDef):
            _fail(node, "not a kernel or a program")
    *kernels, main = (node for node in module.body if isinstance(node, ast.FunctionDef))
    return _Parser(tuple(parse_def(k) for k in kernels)).program(main)


class _Parser:
    """Turns Python's syntax tree into a program."""

    def __init__(self, kernels: tuple[Func, ...]) -> None:
        self.kernels = kernels
        self.size_counts = {k.name: len(k.sizes) for k in kernels}
        self.types: dict[str, DType] = {}  # of the buffers so far
        self.exprs = ExprParser(self.types)

    def program(self, node: ast.FunctionDef) -> Program:
        sizes: list[SizeVar] = []
        inputs: list[Buffer] = []
        for arg in node.args.args:
            match arg.annotation:
                case ast.Name(id="size"):
                    sizes.append(SizeVar(arg.arg))
                case ast.Call(func=ast.Name(id="size"), args=[ast.Constant(value=int(low))]):
                    sizes.append(SizeVar(arg.arg, low))
                case ast.Call(
                    func=ast.Name(id="size"),
                    args=[ast.Constant(value=int(low)), ast.Constant(value=int(high))],
                ):
                    sizes.append(SizeVar(arg.arg, low, high))
                case _:
                    inputs.append(self.known(parse_buffer(arg)))
        outputs = tuple(self.known(parse_buffer(arg)) for arg in node.args.kwonlyargs)
        constants: list[Buffer] = []
        rest = list(node.body)
        while rest and (constant := self.constant(rest[0])) is not None:
            constants.append(constant)
            rest.pop(0)
        match rest:
            case [ast.Expr(value=ast.Call(func=ast.Name(id="arena"), args=regions)), *body]:
                arena = tuple(map(self.exprs.index, regions))
            case _:
                _fail(node, "the arena is missing")
        return Program(
            node.name,
            tuple(sizes),
            tuple(inputs),
            outputs,
            tuple(constants),
            self.kernels,
            arena,
            self.body(body),
        )

    def constant(self, node: ast.stmt) -> Buffer | None:
        match node:
            case ast.Assign(
                targets=[ast.Name(name)],
                value=ast.Call(func=ast.Name(id="const"), args=[type_]),
            ):
                return self.declared(name, type_)
        return None

    def body(self, nodes: list[ast.stmt]) -> tuple[HostStmt, ...]:
        return tuple(self.stmt(n) for n in nodes if not isinstance(n, ast.Pass))

    def stmt(self, node: ast.stmt) -> HostStmt:
        match node:
            case ast.Assign(
                targets=[ast.Name(name)], value=ast.Call(func=ast.Name(word), args=args)
            ):
                return self.buffer(node, name, word, args)
            case ast.AnnAssign(
                target=ast.Name(name),
                annotation=ast.Name(id="size"),
                value=ast.Call(
                    func=ast.Name("bind"), args=[value, ast.Constant(value=str(message))]
                ),
            ):
                return BindSize(name, self.exprs.index(value), message)
            case ast.If(test=test, body=body, orelse=orelse):
                return HostIf(self.exprs.expr(test), self.body(body), self.body(orelse))
            case ast.For(
                target=ast.Name(var),
                iter=ast.Call(func=ast.Name(id="range"), args=[extent]),
                body=body,
                orelse=[],
            ):
                return HostLoop(var, self.exprs.index(extent), self.body(body))
            case ast.For(
                target=ast.Name(var),
                iter=ast.Call(func=ast.Name(id="range"), args=[extent, go]),
                body=body,
                orelse=[],
            ):
                goes, steps = self.exprs.expr(go), self.exprs.index(extent)
                return HostLoop(var, steps, self.body(body), goes)
            case ast.Expr(value=ast.Call(func=ast.Name(name), args=args)):
                return self.call(node, name, args)
        _fail(node, "not a statement of a program")

    def buffer(self, node: ast.stmt, name: str, word: str, args: list[ast.expr]) -> HostStmt:
        match word, args:
            case "place", [type_, ast.Constant(value=int(region))]:
                return Place(self.declared(name, type_), region)
            case "place", [type_, ast.Constant(value=int(region)), offset]:
                return Place(self.declared(name, type_), region, self.exprs.index(offset))
            case "view", [ast.Name(source), type_]:
                return View(self.declared(name, type_), source)
            case "view", [ast.Name(source), type_, offset]:
                return View(self.declared(name, type_), source, self.exprs.index(offset))
            case "allocate", [type_]:
                return Allocate(self.declared(name, type_))
            case "local", [type_]:
                return Local(self.declared(name, type_))
            case "take", [ast.Name(source), type_]:
                return Take(self.declared(name, type_), source)
            case "slot", []:
                return Slot(name)
        _fail(
            node,
            "neither place(type, region, offset), view(source, type, offset) nor allocate(type)",
        )

    def declared(self, name: str, node: ast.expr) -> Buffer:
        type_: TensorType = parse_type(node)
        return self.known(Buffer(name, type_))

    def known(self, buffer: Buffer) -> Buffer:
        self.types[buffer.name] = buffer.type.dtype
        return buffer

    def call(self, node: ast.stmt, name: str, args: list[ast.expr]) -> HostStmt:
        match name, args:
            case "copy", [ast.Name(target), ast.Name(source)]:
                return Copy(target, source)
            case "release", [ast.Name(buffer)]:
                return Release(buffer)
            case "put", [ast.Name(slot), ast.Name(buffer)]:
                return Put(slot, buffer)
            case "write", [ast.Name(buffer), ast.Constant(value=int(index)), value]:
                return WriteSize(buffer, index, self.exprs.index(value))
            case "provide", [ast.Name(buffer)]:
                return Provide(buffer)
            case "check", [cond, ast.Constant(value=str(message))]:
                return Check(self.exprs.expr(cond), message)
        others = {"runtime": self.call_runtime, "within": self.check_range, "fetch": self.fetch}
        if name in others:
            return others[name](node, args)
        if name not in self.size_counts:
            _fail(node, f"there is no kernel '{name}'")
        count = self.size_counts[name]
        sizes = tuple(self.exprs.index(a) for a in args[:count])
        buffers = tuple(a.id for a in args[count:] if isinstance(a, ast.Name))
        if len(buffers) != len(args) - count:
            _fail(node, "an argument is no buffer")
        return CallKernel(name, sizes, buffers)

    def check_range(self, node: ast.stmt, args: list[ast.expr]) -> HostStmt:
        match args:
            case [
                ast.Name(buffer),
                *sizes,
                ast.Constant(value=bool(negative)),
                ast.Constant(value=str(message)),
            ]:
                return CheckRange(buffer, tuple(map(self.exprs.index, sizes)), negative, message)
        _fail(node, "not within(buffer, sizes, negative, message)")

    def fetch(self, node: ast.stmt, args: list[ast.expr]) -> HostStmt:
        match args:
            case [
                ast.Name(buffer),
                ast.Constant(value=int(first)),
                ast.Constant(value=int(count)),
            ]:
                return Fetch(buffer, first, count)
        _fail(node, "not fetch(buffer, first, count)")

    def call_runtime(self, node: ast.stmt, args: list[ast.expr]) -> HostStmt:
        match args:
            case [ast.Constant(value=str(function)), *args] if function in FUNCTIONS:
                pass
            case _:
                _fail(node, "the runtime has no such function")
        count = FUNCTIONS[function].sizes
        sizes = tuple(self.exprs.index(a) for a in args[:count])
        buffers = tuple(a.id for a in args[count:] if isinstance(a, ast.Name))
        return CallRuntime(function, sizes, buffers)


def _fail(node: ast.stmt, reason: str) -> NoReturn:
    raise UserError(detail=f"program text, line {node.lineno}: {reason}: {ast.unparse(node)}")
