"""Putting elements into order: keys that compare as the elements do, and sorting them by digits.

A key is an unsigned integer. Sorting takes a pass for each of its bytes, whatever the elements are,
and keeps the order of equal ones.

Source: D. E. Knuth, The Art of Computer Programming, volume 3, 5.2.5 (sorting by distribution).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import is_below
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import constants, set_size
from dlc.graph.ops.nest import NestOp, each, each_row, lines, when
from dlc.schedule.loop import Buffer
from dlc.te import tensor as te
from dlc.te.expr import Binary, BinOp, Expr, UnOp, ceil_div, const, equal, select, unary
from dlc.te.simplify import surely_less
from dlc.te.types import TensorType

_UNSIGNED = {8: DType.U8, 16: DType.U16, 32: DType.U32, 64: DType.U64}
_INFINITY = {
    DType.F16: 0x7C00,
    DType.BF16: 0x7F80,
    DType.F32: 0x7F80_0000,
    DType.F64: 0x7FF0_0000_0000_0000,
}
"""The bits of infinity; those of a NaN are more."""
_DIGIT = 8
"""Bits of a digit: the counters of all digits of a key stay in the first cache."""
WIDTH = 64
"""Keys that are compared together."""


def has_order(dtype: DType) -> bool:
    """Whether elements of a type have keys: integers of whole bytes, and floats."""
    return dtype in _INFINITY or (dtype.is_int and dtype.bits in _UNSIGNED)


def key_type(dtype: DType) -> DType:
    """The type of the keys of elements, which is that of their bits."""
    return _UNSIGNED[dtype.bits]


@op("order_keys", fuse=Fuse.ELEMENTWISE)
class OrderKeys(Op):
    """Keys that are less where the elements come before, and equal where these are.

    Shapes:
        bits: unsigned integers, those of numbers of type `of`, of any shape -> the same

    NaN counts as the largest number; with `largest` the largest comes first.
    """

    of: DType
    largest: bool = False

    def infer(self, bits: TensorType) -> TensorType:
        if not has_order(self.of):
            raise self.reject(f"{self.of} has no order", bits)
        if bits.dtype is not key_type(self.of):
            raise self.reject(f"they are not the bits of {self.of}", bits)
        return bits

    def compute(self, bits: te.Tensor) -> te.Tensor:
        return te.elementwise(self.name, self._key, bits)

    def _key(self, bits: Expr) -> Expr:
        dtype = bits.dtype
        low = const(1 << (self.of.bits - 1), dtype)  # the bit of the sign
        key = Binary(BinOp.BITXOR, bits, low) if self.of.is_signed else bits
        if self.of in _INFINITY:
            size = Binary(BinOp.BITAND, bits, const((1 << (self.of.bits - 1)) - 1, dtype))
            negative = select(bits < low, key, unary(UnOp.INVERT, bits))
            key = select(equal(size, const(0, dtype)), low, negative)
            last = const((1 << self.of.bits) - 1, dtype)
            key = select(const(_INFINITY[self.of], dtype) < size, last, key)
        return unary(UnOp.INVERT, key) if self.largest else key

    def reference(self, bits: Array) -> Array:
        width = self.of.bits
        unsigned = np.dtype(f"uint{width}")
        bits = bits.astype(unsigned)
        low = unsigned.type(1 << (width - 1))
        key = bits ^ low if self.of.is_signed else bits
        if self.of in _INFINITY:
            size = bits & unsigned.type((1 << (width - 1)) - 1)
            key = np.where(bits < low, key, ~bits)
            key = np.where(size == 0, low, key)
            key = np.where(size > _INFINITY[self.of], unsigned.type((1 << width) - 1), key)
        return np.asarray(~key if self.largest else key)


@dataclass(frozen=True, kw_only=True)
class Places(NestOp):
    """The places of the first `k` keys of each row, in an order of its own."""

    k: Expr

    def __post_init__(self) -> None:
        set_size(self, "k")

    def infer(self, keys: TensorType) -> TensorType:
        if keys.rank != 2 or keys.dtype not in _UNSIGNED.values():
            raise self.reject("needs rows of unsigned keys", keys)
        if is_below(keys.shape[1], self.k):
            raise self.reject(f"{self.k} of {keys.shape[1]} keys", keys)
        return TensorType((keys.shape[0], self.k), DType.I64)


@op("sort_order", fuse=Fuse.OPAQUE)
class SortOrder(Places):
    """Where the first `k` keys of each row are, in order; of equal ones the first comes first.

    Shapes:
        keys: [rows, n], unsigned -> i64[rows, k]
    """

    def nest(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> str:
        (keys,), (out,) = inputs, outputs
        (rows, n), k = keys.type.shape, out.type.shape[1]

        def place(rank: str, at: str) -> str:
            return when(f"index({rank}) < {k}", f"{out.name}[r, index({rank})] = i64({at})")

        body = sort_by_digits(keys.type.dtype, n, lambda at: f"{keys.name}[r, {at}]", place)
        return each_row(rows, keys.type.elems, body)

    def reference(self, keys: Array) -> Array:
        (k,) = constants((self.k,))
        return np.argsort(keys, axis=1, kind="stable")[:, :k].astype(np.int64)


def sort_by_digits(
    dtype: DType,
    size: Expr,
    key: Callable[[str], str],
    place: Callable[[str, str], str],
    count: str = "",
) -> str:
    """The nest that sorts `size` keys by their digits, the least one first.

    Args:
        dtype: of the keys.
        size: how many there are.
        key: the key at a place.
        place: what happens to each key in the end, by its rank and its place.
        count: how many of them there are, as data says, where that may be fewer.
    """
    digits, values = dtype.bits // _DIGIT, 1 << _DIGIT
    number = DType.I32 if surely_less(size, 2**31) else DType.I64
    spare = range(min(digits - 1, 2))
    ones = [f"counts[{d}, {_digit('counted[0]', dtype, d)}] += {number}(1)" for d in range(digits)]

    def counted(at: str) -> str:
        return lines(f'counted = alloc({dtype}[1], "register")', f"counted[0] = {key(at)}", *ones)

    def moved(digit: int) -> str:
        return below(
            f"at{digit}", size, count, lambda at: _by_digit(dtype, number, key, place, digit, at)
        )

    total = lines(
        "before[1] = counts[summed, value]",
        "counts[summed, value] = before[0]",
        "before[0] = before[0] + before[1]",
    )
    clear = each("digit", values, f"counts[clear, digit] = {number}(0)")
    summed = lines(
        f'before = alloc({number}[2], "register")',
        f"before[0] = {number}(0)",
        each("value", values, total),
    )
    return lines(
        f'counts = alloc({number}[{digits}, {values}], "local")',
        *(f'keys{b} = alloc({dtype}[{size}], "local")' for b in spare),
        *(f'places{b} = alloc({number}[{size}], "local")' for b in spare),
        each("clear", digits, clear),
        below("i", size, count, counted),
        each("summed", digits, summed),
        *map(moved, range(digits)),
    )


def _by_digit(
    dtype: DType,
    number: DType,
    key: Callable[[str], str],
    place: Callable[[str, str], str],
    digit: int,
    at: str,
) -> str:
    """Move all keys behind those with less in one digit."""
    rank, held, last = f"rank{digit}", f"key{digit}", dtype.bits // _DIGIT - 1
    source = f"places{(digit - 1) % 2}[{at}]" if digit else f"{number}({at})"
    counter = f"counts[{digit}, {_digit(f'{held}[0]', dtype, digit)}]"
    moved = lines(
        f"keys{digit % 2}[index({rank}[0])] = {held}[0]",
        f"places{digit % 2}[index({rank}[0])] = {source}",
    )
    return lines(
        f'{held} = alloc({dtype}[1], "register")',
        f'{rank} = alloc({number}[1], "register")',
        f"{held}[0] = {f'keys{(digit - 1) % 2}[{at}]' if digit else key(at)}",
        f"{rank}[0] = {counter}",
        f"{counter} = {rank}[0] + {number}(1)",
        moved if digit < last else place(f"{rank}[0]", source),
    )


def below(var: str, size: Expr, count: str, body: Callable[[str], str]) -> str:
    """A loop over the first `count` of `size` places; over all of them where `count` is empty.

    Blocks behind them cost a test each.
    """
    if not count:
        return each(var, size, body(var))
    at = f"{var}_block * {WIDTH} + {var}"
    inner = each(var, WIDTH, when(f"{at} < {count}", body(at)))
    blocks = ceil_div(size, WIDTH)
    return each(f"{var}_block", blocks, when(f"{var}_block * {WIDTH} < {count}", inner))


def _digit(key: str, dtype: DType, number: int) -> str:
    shifted = f"({key} >> {dtype}({_DIGIT * number}))" if number else key
    return f"index({shifted} & {dtype}({(1 << _DIGIT) - 1}))"
