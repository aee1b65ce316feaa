"""Loop IR text. The syntax is a subset of Python's, so `ast` is the parser, and `exec` with the
prelude of `interpret.py` is the reference interpreter.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import NoReturn, assert_never

from dlc.core.errors import UserError
from dlc.core.types import DType
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
    block,
    loops,
)
from dlc.te.expr import Binary, BinOp, Expr, binary
from dlc.te.text import ExprParser, parse_type, print_expr, print_ref
from dlc.te.types import TensorType

INDENT = "    "
_WORD = re.compile(r"[^\W\d]\w*")
_AUGMENTED = {BinOp.ADD: "+=", BinOp.MUL: "*="}


def print_func(func: Func) -> str:
    """Write a function in loop IR text; `parse_func` reads it back."""
    params = [f"{s}: size" for s in func.sizes]
    params += [f"{b.name}: {print_type(b.type)}" for b in func.inputs]
    if func.outputs:
        params += ["*", *(f"{b.name}: {print_type(b.type)}" for b in func.outputs)]
    lines = [f"def {func.name}({', '.join(params)}):", *_lines(func.body, INDENT)]
    if func.in_place:
        pairs = ", ".join(f'{out}="{source}"' for out, source in func.in_place)
        lines.insert(0, f"@in_place({pairs})")
    return "\n".join(lines) + "\n"


def canonical_text(func: Func) -> str:
    """The text of a function with names replaced by numbers, in order of their declaration.

    No name is a word of the text's syntax (`verify_func` sees to that), so the texts of two
    functions agree only if the functions do, but for names.
    """
    names = [*func.sizes, *(b.name for b in func.params)]
    names += [*allocs(func.body), *loops(func.body)]
    numbers = {name: f"_{number}" for number, name in enumerate(names)}
    text = print_func(replace(func, name="_"))
    return _WORD.sub(lambda match: numbers.get(match[0], match[0]), text)


def print_stmt(stmt: Stmt) -> str:
    """Write one statement, for messages."""
    return "\n".join(_lines(stmt, ""))


def print_type(type_: TensorType) -> str:
    """`f32[n, 3]`; a scalar is `f32[()]`, because Python has no empty subscript."""
    return str(type_) if type_.rank else f"{type_.dtype}[()]"


def _lines(stmt: Stmt, pad: str) -> list[str]:
    match stmt:
        case Store(buffer, index, value):
            return [pad + _store(stmt, print_ref(buffer, index), value)]
        case If(cond, body):
            return [f"{pad}if {print_expr(cond)}:", *_lines(body, pad + INDENT)]
        case For(var, extent, kind, body, notes):
            more = "".join(f", {key}={value}" for key, value in notes)
            head = f"{pad}for {var} in {kind}({print_expr(extent)}{more}):"
            return [head, *_lines(body, pad + INDENT)]
        case Alloc(buffer, scope, body):
            head = f'{pad}{buffer.name} = alloc({print_type(buffer.type)}, "{scope}")'
            return [head, *_lines(body, pad)]
        case Invoke(name, operands):
            refs = [f'"{name}"', *(print_ref(b, index) for b, index in operands)]
            return [f"{pad}invoke({', '.join(refs)})"]
        case Block(stmts):
            return [line for s in stmts for line in _lines(s, pad)] or [f"{pad}pass"]
        case _:
            assert_never(stmt)


def _store(stmt: Store, ref: str, value: Expr) -> str:
    op = accumulation(stmt)
    if op in _AUGMENTED and isinstance(value, Binary):
        return f"{ref} {_AUGMENTED[op]} {print_expr(value.b)}"
    return f"{ref} = {print_expr(value)}"


def parse_func(text: str) -> Func:
    """Read one function of loop IR text.

    Raises:
        UserError: the text is not loop IR; the message names the line.
    """
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        raise UserError(detail=f"not loop IR text, line {error.lineno}: {error.msg}") from error
    match module.body:
        case [ast.FunctionDef() as node]:
            return parse_def(node)
    raise UserError(detail="loop IR text must hold exactly one 'def'")


def parse_def(node: ast.FunctionDef) -> Func:
    """Read one function from its syntax tree."""
    sizes: list[str] = []
    inputs: list[Buffer] = []
    for arg in node.args.args:
        match arg.annotation:
            case ast.Name(id="size"):
                sizes.append(arg.arg)
            case _:
                inputs.append(parse_buffer(arg))
    outputs = tuple(parse_buffer(arg) for arg in node.args.kwonlyargs)
    types = {b.name: b.type.dtype for b in (*inputs, *outputs)}
    body = _StmtParser(types).body(node.body)
    return Func(node.name, tuple(sizes), tuple(inputs), outputs, body, _parse_in_place(node))


def parse_buffer(arg: ast.arg) -> Buffer:
    """Read a parameter `name: f32[n, 3]`."""
    if arg.annotation is None:
        _fail(arg, f"parameter '{arg.arg}' has no type")
    return Buffer(arg.arg, parse_type(arg.annotation))


def _parse_in_place(node: ast.FunctionDef) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for decorator in node.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="in_place"), args=[], keywords=keywords):
                for word in keywords:
                    match word:
                        case ast.keyword(arg=str(out), value=ast.Constant(value=str(source))):
                            pairs.append((out, source))
                        case _:
                            _fail(decorator, 'not output="input"')
            case _:
                _fail(decorator, "not a decorator of loop IR")
    return tuple(pairs)


class _StmtParser:
    """Turns Python's syntax tree into statements."""

    def __init__(self, types: dict[str, DType]) -> None:
        self.types = types  # grows by the buffers met on the way
        self.exprs = ExprParser(types)

    def body(self, nodes: list[ast.stmt]) -> Stmt:
        stmts: list[Stmt] = []
        for position, node in enumerate(nodes):
            match node:
                case ast.Pass():
                    pass
                case ast.Assign(
                    targets=[ast.Name(name)],
                    value=ast.Call(
                        func=ast.Name(id="alloc"), args=[type_, ast.Constant(value=str(scope))]
                    ),
                ):
                    buffer = Buffer(name, parse_type(type_))
                    self.types[name] = buffer.type.dtype
                    rest = self.body(nodes[position + 1 :])
                    stmts.append(Alloc(buffer, self.scope(node, scope), rest))
                    break
                case _:
                    stmts.append(self.stmt(node))
        return block(*stmts)

    def scope(self, node: ast.stmt, word: str) -> Scope:
        if word not in list(Scope):
            _fail(node, f"there is no scope '{word}'")
        return Scope(word)

    def stmt(self, node: ast.stmt) -> Stmt:
        match node:
            case ast.For(
                target=ast.Name(var),
                iter=ast.Call(func=ast.Name(kind), args=[extent], keywords=keywords),
                orelse=[],
            ) if kind in list(LoopKind):
                notes = tuple(self.note(node, word) for word in keywords)
                body = self.body(node.body)
                return For(var, self.exprs.index(extent), LoopKind(kind), body, notes)
            case ast.If(test=test, orelse=[]):
                return If(self.exprs.expr(test), self.body(node.body))
            case ast.Assign(targets=[ast.Subscript(value=ast.Name()) as target], value=value):
                ref = self.exprs.load(target)
                return Store(ref.buffer, ref.index, self.exprs.expr(value))
            case ast.AugAssign(target=ast.Subscript(value=ast.Name()) as target, value=value):
                return self.augmented(node, target, value)
            case ast.Expr(
                value=ast.Call(
                    func=ast.Name(id="invoke"), args=[ast.Constant(value=str(name)), *refs]
                )
            ):
                return Invoke(name, tuple(self.operand(ref) for ref in refs))
        _fail(node, "not a statement of loop IR")

    def augmented(self, node: ast.AugAssign, target: ast.Subscript, value: ast.expr) -> Stmt:
        ops = {ast.Add: BinOp.ADD, ast.Mult: BinOp.MUL}
        op = ops.get(type(node.op))
        if op is None:
            _fail(node, "only += and *= are known")
        ref = self.exprs.load(target)
        return Store(ref.buffer, ref.index, binary(op, ref, self.exprs.expr(value)))

    def operand(self, node: ast.expr) -> tuple[str, tuple[Expr, ...]]:
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)):
            _fail(node, "not an element of a buffer")
        ref = self.exprs.load(node)
        return ref.buffer, ref.index

    def note(self, node: ast.stmt, word: ast.keyword) -> tuple[str, int]:
        match word:
            case ast.keyword(arg=str(key), value=ast.Constant(value=int(value))):
                return key, value
        _fail(node, "a note is not key=integer")


def _fail(node: ast.stmt | ast.expr | ast.arg, reason: str) -> NoReturn:
    raise UserError(detail=f"loop IR text, line {node.lineno}: {reason}: {ast.unparse(node)}")
