"""The oracle: run loop IR with NumPy by executing its own text.

Obvious on purpose, and stricter than any machine: indices outside a buffer raise (NumPy alone
accepts negative ones), what was never stored is NaN or a strange number, and loops that promise no
order run in a shuffled one, so a wrong `parallel` gives a wrong answer here; only where no order
can change anything do all iterations run together (`interpret_lanes`).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlc.core.errors import InputError, InternalError
from dlc.core.types import NARROW, NARROW_INTS, DType
from dlc.schedule.instruction import INSTRUCTIONS
from dlc.schedule.interpret_lanes import choose, kept, lanes
from dlc.schedule.interpret_syntax import NAME, python_code
from dlc.schedule.loop import Block, Buffer, Func, LoopKind
from dlc.schedule.text import print_func
from dlc.te.expr import Binary as BinaryExpr
from dlc.te.expr import Const, Expr, Var, fold_ints

Array = NDArray[Any]
Index = int | Array | tuple[int | Array, ...]  # of one element, or of one for each lane
_NARROW_INTS = frozenset(dtype.numpy_name for dtype in NARROW_INTS)  # NumPy calls none an integer
_OF_ARRAYS = frozenset(
    {np.exp, np.log, np.log1p, np.sqrt, np.tanh, np.sin, np.cos, np.floor, np.ceil, np.rint}
)
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

    def __getitem__(self, index: Index) -> Any:
        self._check(index)
        return self.array[index]

    def __setitem__(self, index: Index, value: object) -> None:
        self._check(index)
        self.array[index] = value

    def _check(self, index: Index) -> None:
        # NumPy itself refuses what is too large; the verifier has checked the number of indices.
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if (part < 0) if type(part) is int else np.any(part < 0):
                raise IndexError(f"{index} is outside {self.array.shape}")

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
        if isinstance(value, np.ndarray):
            return self._all(value, target)
        if self.dtype.is_float:
            return target.type(value)
        if self.dtype is DType.BOOL:
            return np.bool_(value != 0)
        if isinstance(value, int | np.integer | np.bool_) or type(value).__name__ in _NARROW_INTS:
            wrapped = np.asarray(int(value) & ((1 << 64) - 1), np.uint64).astype(target)[()]
            return int(wrapped) if self.dtype is DType.INDEX else wrapped
        return self._saturate(float(value), target)

    def _all(self, values: Array, target: np.dtype[Any]) -> Array:
        """The same of many: at once where NumPy means what loop IR means."""
        source = values.dtype.kind  # "V" of what NumPy does not know
        if self.dtype is DType.BOOL:
            return np.asarray(values != 0)
        if self.numpy and (self.dtype.is_float or source in "biu"):
            return values.astype(target)
        if self.dtype is DType.BF16 and source == "f":
            return values.astype(target)
        if self.numpy and source == "f" and self.dtype.bits <= 32:
            limits = np.iinfo(target)
            whole = np.trunc(np.nan_to_num(values.astype(np.float64)))
            return whole.clip(limits.min, limits.max).astype(target)
        return np.array([self(value) for value in values], target)

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


def _through_f64(fn: Callable[..., Any]) -> Callable[[Any], Any]:
    """Compute in float64 and round once to the type of the operand."""

    def apply(x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return type(x)(fn(np.float64(x)))
        wide = x.astype(np.float64)
        return (fn(wide) if fn in _OF_ARRAYS else np.array([*map(fn, wide)])).astype(x.dtype)

    return apply


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
        "lanes": lanes, "kept": kept, "choose": choose,
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
        "flush": lambda x: np.where(abs(x) < np.finfo(x.dtype).tiny, np.copysign(x * 0, x), x)[()],
        "tf32": _tf32,
        "all_of": lambda *parts: functools.reduce(operator.and_, parts),
        "any_of": lambda *parts: functools.reduce(operator.or_, parts),
    }  # fmt: skip
    return words


def _divide(a: Any, b: Any) -> Any:
    if not hasattr(a, "dtype") or a.dtype.kind not in "iu":
        return a / b
    whole = a // b
    return whole + ((whole < 0) & (whole * b != a)).astype(whole.dtype)


def _normcdf(x: float) -> float:
    return 0.5 * math.erfc(-x * math.sqrt(0.5))


def _tf32(x: Any) -> Any:
    """Source: PTX ISA 9.0, cvt.rna.tf32.f32."""
    rounded = ((x.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(x != x, x, rounded)[()]


@functools.lru_cache(maxsize=512)
def _compile(text: str) -> Callable[[int], Callable[..., None]]:
    """The function of a text, ready to be bound to the order of one seed."""
    code = python_code(text)

    def bind(seed: int) -> Callable[..., None]:
        env = _prelude(seed)
        exec(code, env)  # our own text, printed from the IR and never a user's
        fn = env[NAME]
        if not callable(fn):
            raise InternalError(detail="the text defines no function")
        return fn  # type: ignore[no-any-return]  # what exec defines has no static type

    return bind
