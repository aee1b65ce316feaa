"""The oracle: run loop IR with NumPy by executing its own text.

Slow and obvious on purpose, and stricter than any machine: indices outside a buffer raise (NumPy
alone accepts negative ones), what was never stored is NaN or a strange number, and loops that
promise no order run in a shuffled one, so a wrong `parallel` gives a wrong answer here.
"""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlc.core.errors import InputError, InternalError
from dlc.core.types import NARROW, NARROW_INTS, DType
from dlc.schedule.instruction import INSTRUCTIONS
from dlc.schedule.loop import Block, Buffer, Func, LoopKind
from dlc.schedule.text import print_func
from dlc.te.expr import Binary as BinaryExpr
from dlc.te.expr import Const, Expr, Var, fold_ints

Array = NDArray[Any]
_NARROW_INTS = frozenset(dtype.numpy_name for dtype in NARROW_INTS)  # NumPy calls none an integer
_POISON = 0x5A5A5A5A5A5A5A5A  # what an integer holds before the first store


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of the elements of a buffer."""
    if dtype is DType.BF16 or dtype in NARROW:
        import ml_dtypes  # noqa: F401  # not everybody who interprets has them
    return np.dtype(dtype.numpy_name)


def run_func(
    func: Func, sizes: Mapping[str, int], arrays: Mapping[str, Array], seed: int = 0
) -> dict[str, Array]:
    """Run a function and return its outputs; the arrays given are left as they are.

    Raises:
        InputError: an input is missing, or has another shape or type than declared.
        IndexError: the function reads or writes outside a buffer.
    """
    for name in func.sizes:
        if name not in sizes:
            raise InputError(name=name, reason="the size has no value")
    buffers = {b.name: _input(b, sizes, arrays) for b in func.inputs}
    shared = dict(func.in_place)
    for b in func.outputs:
        source = shared.get(b.name)
        buffers[b.name] = buffers[source] if source else _undefined(b.type.dtype, _dims(b, sizes))
    compiled = _compile(print_func(func))
    with np.errstate(all="ignore"):
        checked = {name: Checked(array) for name, array in buffers.items()}
        for out, source in func.in_place:
            checked[out] = checked[source]
        compiled(seed)(**{s: sizes[s] for s in func.sizes}, **checked)
    return {b.name: buffers[b.name] for b in func.outputs}


def evaluate_size(size: Expr, sizes: Mapping[str, int]) -> int:
    """The value of a size expression."""
    match size:
        case Const(value, _):
            return int(value)
        case Var(name, _):
            return sizes[name]
        case BinaryExpr(op, a, b):
            folded = fold_ints(op, evaluate_size(a, sizes), evaluate_size(b, sizes))
            if folded is not None:
                return int(folded)
        case _:
            pass
    words = _prelude(0) | dict(sizes)
    return int(eval(str(size), {"__builtins__": {}}, words))


def _dims(buffer: Buffer, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_size(s, sizes) for s in buffer.type.shape)


def _input(buffer: Buffer, sizes: Mapping[str, int], arrays: Mapping[str, Array]) -> Array:
    if buffer.name not in arrays:
        raise InputError(name=buffer.name, reason=f"missing; given are {', '.join(arrays)}")
    array, shape = np.asarray(arrays[buffer.name]), _dims(buffer, sizes)
    dtype = numpy_dtype(buffer.type.dtype)
    if array.shape != shape or array.dtype != dtype:
        reason = f"{array.dtype}{list(array.shape)} given, {dtype}{list(shape)} declared"
        raise InputError(name=buffer.name, reason=reason)
    return array.copy()


def _undefined(dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype.is_float:
        return np.full(shape, np.nan, numpy_dtype(dtype))
    return np.full(shape, _POISON).astype(numpy_dtype(dtype))


class Checked:
    """An array that refuses every index outside its shape."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    def __getitem__(self, index: int | tuple[int, ...]) -> Any:
        # NumPy itself refuses what is too large; the verifier has checked the number of indices.
        if (min(index, default=0) if type(index) is tuple else index) < 0:  # type: ignore[operator]
            raise IndexError(f"{index} is outside {self.array.shape}")
        return self.array[index]

    def __setitem__(self, index: int | tuple[int, ...], value: object) -> None:
        if (min(index, default=0) if type(index) is tuple else index) < 0:  # type: ignore[operator]
            raise IndexError(f"{index} is outside {self.array.shape}")
        self.array[index] = value

    def region(self, start: tuple[int, ...], shape: tuple[int, ...]) -> Checked:
        """A part: an operand of an instruction, over the last dimensions."""
        lead = len(start) - len(shape)
        stop = tuple(i + n for i, n in zip(start[lead:], shape, strict=True))
        inside = all(i >= 0 for i in start) and all(
            e <= n for e, n in zip(stop, self.array.shape[lead:], strict=True)
        )
        if not inside:
            raise IndexError(f"the region {start} of {shape} is outside {self.array.shape}")
        spans = (slice(i, e) for i, e in zip(start[lead:], stop, strict=True))
        part: tuple[int | slice, ...] = (*start[:lead], *spans)
        return Checked(self.array[part])


class _Type:
    """A word such as `f32`: a cast when called, a buffer type when subscripted."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        plain = dtype is not DType.BF16 and dtype not in NARROW
        self.numpy = numpy_dtype(dtype) if plain else None

    def __getitem__(self, shape: int | tuple[int, ...]) -> tuple[DType, tuple[int, ...]]:
        return self.dtype, shape if isinstance(shape, tuple) else (shape,)

    def __call__(self, value: Any) -> Any:
        target = self.numpy or numpy_dtype(self.dtype)
        if self.dtype.is_float:
            return target.type(value)
        if self.dtype is DType.BOOL:
            return np.bool_(value != 0)
        if isinstance(value, int | np.integer | np.bool_) or type(value).__name__ in _NARROW_INTS:
            wrapped = np.asarray(int(value) & ((1 << 64) - 1), np.uint64).astype(target)[()]
            return int(wrapped) if self.dtype is DType.INDEX else wrapped
        return self._saturate(float(value), target)

    def _saturate(self, value: float, target: np.dtype[Any]) -> Any:
        high = 2 ** (self.dtype.bits - self.dtype.is_signed) - 1
        low = -high - 1 if self.dtype.is_signed else 0
        if math.isnan(value):
            whole = 0
        elif math.isinf(value):
            whole = high if value > 0 else low
        else:
            whole = min(max(int(value), low), high)
        return whole if self.dtype is DType.INDEX else target.type(whole)


def _alloc(type_: tuple[DType, tuple[int, ...]], scope: str) -> Checked:
    return Checked(_undefined(*type_))


def _extreme(builtin: Callable[..., Any], ufunc: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def choose(a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return builtin(a, b)
        return ufunc(a, b)  # NaN if either is

    return choose


def _through_f64(fn: Callable[[float], Any]) -> Callable[[Any], Any]:
    """Compute in float64 and round once to the type of the operand."""
    return lambda x: type(x)(fn(np.float64(x)))


def _invoke(name: str, *operands: tuple[Checked, tuple[int, ...]]) -> None:
    func = INSTRUCTIONS[name].func
    if func.body == Block(()):  # such operands may lie outside: nothing is read
        return
    regions = {
        param.name: buffer.region(start, param.type.static_shape)
        for param, (buffer, start) in zip(func.params, operands, strict=True)
    }
    _compile(print_func(func))(0)(**regions)


def _prelude(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)

    def ordered(extent: int, **notes: int) -> range:
        return range(extent)

    def shuffled(extent: int, **notes: int) -> list[int]:
        order: list[int] = random.permutation(extent).tolist()
        return order

    in_order = (LoopKind.SERIAL, LoopKind.UNROLL)
    words: dict[str, Any] = {k.value: ordered if k in in_order else shuffled for k in LoopKind}
    words |= {dtype.value: _Type(dtype) for dtype in DType}
    words |= {
        "alloc": _alloc, "invoke": _invoke, "divide": _divide,
        "inf": np.float32(np.inf), "nan": np.float32(np.nan),
        "min": _extreme(min, np.minimum), "max": _extreme(max, np.maximum), "abs": abs,
        "exp": _through_f64(np.exp), "log": _through_f64(np.log), "sqrt": _through_f64(np.sqrt),
        "log1p": _through_f64(np.log1p),
        "tanh": _through_f64(np.tanh), "erf": _through_f64(math.erf), "sin": _through_f64(np.sin),
        "normcdf": _through_f64(_normcdf), "normcdf_short": _through_f64(_normcdf),
        "sigmoid": _through_f64(lambda x: 1.0 / (1.0 + np.exp(-x))),
        "cos": _through_f64(np.cos), "floor": _through_f64(np.floor), "isnan": np.isnan,
        "ceil": _through_f64(np.ceil), "round": _through_f64(np.rint),
        "lrint": lambda x: np.int32(np.rint(x)),
        "flush": lambda x: np.copysign(x * 0, x) if abs(x) < np.finfo(x.dtype).tiny else x,
        "tf32": _tf32,
        "all_of": lambda *parts: all([bool(p) for p in parts]),
        "any_of": lambda *parts: any([bool(p) for p in parts]),
    }  # fmt: skip
    return words


def _divide(a: Any, b: Any) -> Any:
    if not isinstance(a, np.integer):
        return a / b
    whole = a // b
    return whole + 1 if whole < 0 and whole * b != a else whole


def _normcdf(x: float) -> float:
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


def _tf32(x: Any) -> Any:
    """Source: PTX ISA 9.0, cvt.rna.tf32.f32."""
    if x != x:
        return x
    bits = int(np.float32(x).view(np.uint32))
    return np.uint32((bits + 0x1000) & 0xFFFFE000).view(np.float32)


class _Strict(ast.NodeTransformer):
    """Makes Python's text mean what loop IR means: f32 literals, no short circuit, references.

    An index that cannot be negative goes to the bare array (`A#` for `A`): NumPy refuses what
    is too large, and that is four times as fast.
    """

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
            return ast.Call(ast.Name("f32", ast.Load()), [node], [])
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Div):
            return ast.Call(ast.Name("divide", ast.Load()), [node.left, node.right], [])
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        name = "all_of" if isinstance(node.op, ast.And) else "any_of"
        return ast.Call(ast.Name(name, ast.Load()), node.values, [])

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


def _raw(name: str, context: ast.expr_context) -> ast.Name:
    return ast.Name(f"{name}#", context)  # no buffer has such a name


def _bare(name: str) -> ast.stmt:
    """`A# = A.array`."""
    array = ast.Attribute(ast.Name(name, ast.Load()), "array", ast.Load())
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


@functools.lru_cache(maxsize=512)
def _compile(text: str) -> Callable[[int], Callable[..., None]]:
    """The function of a text, ready to be bound to the order of one seed."""
    module = ast.parse(text)
    node = module.body[0]
    assert isinstance(node, ast.FunctionDef)
    node.decorator_list = []
    node.name = "kernel#"  # a kernel may be called `range`, which its own text needs
    buffers = [a for a in (*node.args.args, *node.args.kwonlyargs) if _is_buffer(a)]
    for arg in (*node.args.args, *node.args.kwonlyargs):
        arg.annotation = None
    # The body as one module: an allocation becomes two statements.
    strict = _Strict().visit(ast.Module(node.body, []))
    node.body = [*(_bare(a.arg) for a in buffers), *strict.body]
    code = compile(ast.fix_missing_locations(module), "<loop IR>", "exec")

    def bind(seed: int) -> Callable[..., None]:
        env = _prelude(seed)
        exec(code, env)  # our own text, printed from the IR and never a user's
        fn = env[node.name]
        if not callable(fn):
            raise InternalError(detail=f"'{node.name}' is no function")
        return fn  # type: ignore[no-any-return]  # what exec defines has no static type

    return bind
