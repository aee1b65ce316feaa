"""How the oracle reads loop IR text as Python: what differs in meaning is rewritten."""

from __future__ import annotations

import ast
from types import CodeType

from dlc.core.types import DType
from dlc.schedule.interpret_lanes import loop_variable, loops_at_once, mentions

NAME = "kernel#"  # of the function: one called `range` needs that word in its own text


def python_code(text: str) -> CodeType:
    """The definition of a function of loop IR text, which may be called `NAME` then."""
    module = ast.parse(text)
    node = module.body[0]
    assert isinstance(node, ast.FunctionDef)
    pairs = [k for d in node.decorator_list if isinstance(d, ast.Call) for k in d.keywords]
    same = {str(k.arg): str(ast.literal_eval(k.value)) for k in pairs}
    node.decorator_list = []
    node.name = NAME
    buffers = [a for a in (*node.args.args, *node.args.kwonlyargs) if _is_buffer(a)]
    for arg in (*node.args.args, *node.args.kwonlyargs):
        arg.annotation = None
    # The body as one module: an allocation becomes two statements.
    body = ast.Module(node.body, [])
    strict = _Strict(loops_at_once(body, same)).visit(body)
    node.body = [*(_bare(a.arg) for a in buffers), *strict.body]
    return compile(ast.fix_missing_locations(module), "<loop IR>", "exec")


class _Strict(ast.NodeTransformer):
    """Makes Python's text mean what loop IR means: f32 literals, no short circuit, references.

    An index that cannot be negative goes to the bare array (`A#` for `A`): NumPy refuses what
    is too large, and that is four times as fast. Iterations that share no element run together.
    """

    def __init__(self, at_once: frozenset[ast.AST]) -> None:
        self.at_once = at_once  # loops whose iterations run together
        self.lane: str | None = None  # the variable of the iterations that run together
        self.depth = 0  # of conditions among them

    def visit_For(self, node: ast.For) -> ast.For:
        if node not in self.at_once:
            self.generic_visit(node)
            return node
        self.lane = loop_variable(node)
        self.generic_visit(node)
        self.lane = None
        assert isinstance(node.iter, ast.Call)
        node.iter.func = _name("lanes")
        return node

    def visit_If(self, node: ast.If) -> ast.stmt | list[ast.stmt]:
        """Among iterations that run together, go on with those for which the condition holds."""
        if self.lane is None or not mentions(node.test, self.lane):
            self.generic_visit(node)
            return node
        self.depth += 1
        before = f"{self.lane}#{self.depth}"
        self.generic_visit(node)
        self.depth -= 1
        part = ast.Call(_name("kept"), [_name(self.lane), node.test], [])
        return [
            ast.Assign([ast.Name(before, ast.Store())], _name(self.lane)),
            ast.For(ast.Name(self.lane, ast.Store()), part, node.body, []),
            ast.Assign([ast.Name(self.lane, ast.Store())], _name(before)),
        ]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        lane = self.lane if self.lane is not None and mentions(node.test, self.lane) else None
        self.generic_visit(node)
        if lane is None:
            return node
        ways = (_function_of(lane, node.body), _function_of(lane, node.orelse))
        return ast.Call(_name("choose"), [node.test, *ways, _name(lane)], [])

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if isinstance(node.value, ast.Name) and all(map(_is_natural, parts)):
            return ast.Subscript(_raw(node.value.id, ast.Load()), node.slice, node.ctx)
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        match node:
            case ast.Assign(targets=[ast.Name(name)]):
                return [node, _bare(name)]  # an allocation; its type has sizes only
        self.generic_visit(node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, float):
            return ast.Call(_name("f32"), [node], [])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Div):
            return ast.Call(_name("divide"), [node.left, node.right], [])
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        name = "all_of" if isinstance(node.op, ast.And) else "any_of"
        return ast.Call(_name(name), node.values, [])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name)
        if node.func.id == "invoke":
            node.args = [node.args[0], *(self._reference(a) for a in node.args[1:])]
            return node
        if node.func.id in list(DType) and len(node.args) == 1 and _is_literal(node.args[0]):
            return node  # f64(0.1) must not round to f32 first
        self.generic_visit(node)
        return node

    def _reference(self, node: ast.expr) -> ast.expr:
        assert isinstance(node, ast.Subscript)
        parts = node.slice if isinstance(node.slice, ast.Tuple) else None
        at = parts or ast.Tuple([node.slice], ast.Load())
        return ast.Tuple([node.value, self.visit(at)], ast.Load())


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _function_of(name: str, body: ast.expr) -> ast.Lambda:
    arguments = ast.arguments([], [ast.arg(name)], None, [], [], None, [])
    return ast.Lambda(arguments, body)


def _raw(name: str, context: ast.expr_context) -> ast.Name:
    return ast.Name(f"{name}#", context)  # no buffer has such a name


def _bare(name: str) -> ast.stmt:
    """`A# = A.array`."""
    array = ast.Attribute(_name(name), "array", ast.Load())
    return ast.Assign([_raw(name, ast.Store())], array)


def _is_natural(node: ast.expr) -> bool:
    """Whether an index cannot be negative: sums and products of loop variables, sizes, numbers."""
    match node:
        case ast.Name():
            return True
        case ast.Constant(value=int(value)):
            return value >= 0
        case ast.BinOp(left, ast.Add() | ast.Mult() | ast.FloorDiv() | ast.Mod(), right):
            return _is_natural(left) and _is_natural(right)
        case _:
            return False


def _is_literal(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant)


def _is_buffer(arg: ast.arg) -> bool:
    return isinstance(arg.annotation, ast.Subscript)
