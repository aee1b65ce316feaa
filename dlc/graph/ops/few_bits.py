"""Weights of a few bits, whose blocks along the depth share a scale and perhaps a zero point."""

from __future__ import annotations

import numpy as np

from dlc.core.types import DType
from dlc.graph.assume import differs, is_below
from dlc.graph.op import Array, Fuse, Op, as_f64, op
from dlc.graph.ops.attributes import constants, set_size
from dlc.graph.ops.matmul import MatMulPacked, check_stack
from dlc.te import tensor as te
from dlc.te.expr import BinOp, Expr, binary, cast, ceil_div, const, index
from dlc.te.simplify import canonical
from dlc.te.types import TensorType

WORD_BITS = 32
_BYTE = 8  # bits
_QUAD = 4  # bytes of a word
_SCALES = (DType.F32, DType.F16, DType.BF16)
_ZEROS = (DType.F32, DType.U8)


@op("dequantize_blocks", fuse=Fuse.INJECTIVE)
class DequantizeBlocks(Op):
    """(number - zero) * scale, both of which hold for `block` positions of an axis.

    Shapes:
        numbers: [..., n, ...]; scale, zero: f32[..., ceil(n / block), ...] -> f32[..., n, ...]

    Source: https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html
    """

    axis: int
    block: int

    def infer(
        self, numbers: TensorType, scale: TensorType, zero: TensorType | None = None
    ) -> TensorType:
        given = [t for t in (scale, zero) if t is not None]
        if any(t.dtype is not DType.F32 or t.rank != numbers.rank for t in given):
            raise self.reject("scales and zero points are no float32 of as many axes", *given)
        if not 0 <= self.axis < numbers.rank or self.block < 1:
            raise self.reject(f"axis {self.axis} has no blocks of {self.block}", numbers)
        for t in given:
            for d, (size, count) in enumerate(zip(numbers.shape, t.shape, strict=True)):
                blocks = canonical(ceil_div(size, self.block)) if d == self.axis else size
                if differs(blocks, count):
                    raise self.reject("scales or zero points do not fit the blocks", numbers, t)
        return TensorType(numbers.shape, DType.F32)

    def compute(self, numbers: te.Tensor, scale: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        def element(*at: Expr) -> Expr:
            block = (*at[: self.axis], at[self.axis] // self.block, *at[self.axis + 1 :])
            number = cast(DType.F32, numbers[at])
            for zero in zeros:
                number = number - zero[block]
            return number * scale[block]

        return te.compute(self.name, numbers.shape, element, inputs=(numbers, scale, *zeros))

    def reference(self, numbers: Array, scale: Array, *zeros: Array) -> Array:
        blocks = np.arange(numbers.shape[self.axis]) // self.block
        found = numbers.astype(np.float64)
        factor, *shifts = (np.take(a, blocks, self.axis) for a in as_f64(scale, *zeros))
        for shift in shifts:
            found = found - shift
        return np.asarray(found * factor)


def places_in_turn(bits: int) -> Array:
    """Where in a word the numbers of successive summands begin, one behind the other."""
    return np.arange(0, WORD_BITS, bits, dtype=np.uint32)


def places_of_quads(bits: int) -> Array:
    """The same where four successive ones lie in the same place of the four bytes."""
    return places_in_turn(bits).reshape(_QUAD, -1).T.reshape(-1)


def pack_words(numbers: Array, bits: int, *, in_quads: bool) -> Array:
    """Numbers below 2**bits, each in a byte, as words: [..., k] -> u32[..., k * bits / 32].

    `in_quads` says whether they have `places_of_quads` rather than `places_in_turn`.
    """
    each = _BYTE // bits
    shape = (each, _QUAD) if in_quads else (_QUAD, each)
    parts = numbers.reshape(*numbers.shape[:-1], -1, *shape)
    found = np.zeros((*parts.shape[:-2], _QUAD), np.uint8)
    for place in range(each):
        part = parts[..., place, :] if in_quads else parts[..., place]
        found |= part << np.uint8(place * bits)
    return np.asarray(found.view(np.dtype("<u4"))[..., 0])


class _FewBits(Op):
    """A product with numbers of `bits` bits that lie in words; its operators declare the fields."""

    n: Expr
    bits: int

    def __post_init__(self) -> None:
        set_size(self, "n")

    @property
    def per_word(self) -> int:
        """How many numbers a word holds."""
        return WORD_BITS // self.bits

    def check(
        self, x: TensorType, w: TensorType, scale: TensorType, zero: TensorType | None
    ) -> None:
        """Refuse panels that fit neither the rows nor each other."""
        if w.dtype is not DType.U32 or w.rank < 3:
            raise self.reject("needs panels of words", x, w)
        check_stack(self, x, w)
        if self.bits not in (2, 4, 8):
            raise self.reject(f"numbers of {self.bits} bits do not fill a word", w)
        *panels, words, nr = w.shape
        fits = scale.dtype in _SCALES and scale.rank == w.rank
        if not fits or any(map(differs, panels, scale.shape)):
            raise self.reject("scales do not fit the panels", w, scale)
        if differs(scale.shape[-1], nr) or differs(words % scale.shape[-2], 0):
            raise self.reject("scales do not fit the words of a block", w, scale)
        if zero is not None and (zero.dtype not in _ZEROS or zero.shape != scale.shape):
            raise self.reject("zero points are not those of the scales", scale, zero)
        if differs(x.shape[-1], words * self.per_word):
            raise self.reject("the inner sizes differ", x, w)
        if is_below(panels[-1] * nr, self.n):
            raise self.reject(f"the panels hold less than {self.n} columns", x, w)

    def numbers(self, w: Array, places: Array) -> Array:
        """The numbers at these bits: [..., words, nr] -> [..., words * per_word, nr]."""
        found = (w[..., None, :] >> places[:, None]) & ((1 << self.bits) - 1)
        *panels, words, each, nr = found.shape
        return np.asarray(found.reshape(*panels, words * each, nr))


@op("matmul_few_bits", fuse=Fuse.ANCHOR)
class MatMulFewBits(_FewBits):
    """The product with (number - zero) * scale, whose numbers of `bits` bits lie in words.

    A word holds the numbers of successive summands of a column, the first one in its lowest bits.
    Without an operand `zero`, all zero points are `middle`. Of a stack, see `MatMulPacked`.

    Shapes:
        x: f32[*stack, ..., k]; w: u32[*stack, panels, k * bits / 32, nr];
        scale, zero: [*stack, panels, blocks, nr] -> f32[*stack, ..., n]; n <= panels * nr
    """

    n: Expr
    bits: int
    middle: int = 0

    def infer(
        self, x: TensorType, w: TensorType, scale: TensorType, zero: TensorType | None = None
    ) -> TensorType:
        if x.dtype is not DType.F32 or x.rank < 1:
            raise self.reject("needs float32 rows", x, w)
        self.check(x, w, scale, zero)
        return TensorType((*x.shape[:-1], self.n), DType.F32)

    def compute(self, x: te.Tensor, w: te.Tensor, scale: te.Tensor, *zeros: te.Tensor) -> te.Tensor:
        type_ = self.infer(x.type, w.type, scale.type, *(z.type for z in zeros))
        (*panels, words, nr), blocks, each = w.shape, scale.shape[-2], self.per_word
        length = canonical(words // blocks)
        mask = const((1 << self.bits) - 1, DType.U32)

        def weight(*at: Expr) -> Expr:
            *panel, block, i, e, lane = at
            word, at = w[(*panel, block * length + i, lane)], (*panel, block, lane)
            moved = binary(BinOp.SHR, word, cast(DType.U32, e * self.bits))
            number = cast(DType.F32, binary(BinOp.BITAND, moved, mask))
            middle = zeros[0][at] if zeros else const(self.middle, DType.F32)
            return (number - cast(DType.F32, middle)) * cast(DType.F32, scale[at])

        shape = (*panels, blocks, length, index(each), nr)
        weights = te.compute("weights", shape, weight, inputs=(w, scale, *zeros))

        def element(*out: Expr) -> te.Reduce:
            *row, j = out

            def term(block: Expr, i: Expr, e: Expr) -> Expr:
                k = (block * length + i) * each + e
                at = (*row[: len(panels) - 1], j // nr, block, i, e, j % nr)
                return x[(*row, k)] * weights[at]

            return te.reduce_sum((blocks, length, index(each)), term)

        return te.compute(self.name, type_.shape, element, inputs=(x, weights))

    def reference(self, x: Array, w: Array, scale: Array, *zeros: Array) -> Array:
        numbers = self.numbers(w, places_in_turn(self.bits))
        axis, block = numbers.ndim - 2, numbers.shape[-2] // scale.shape[-2]
        middle = zeros[0] if zeros else np.full(scale.shape, self.middle, np.float64)
        columns = DequantizeBlocks(axis=axis, block=block).reference(numbers, scale, middle)
        (n,) = constants((self.n,))
        return MatMulPacked(n=index(n)).reference(x, columns)


@op("matmul_bytes_few_bits", fuse=Fuse.ANCHOR)
class MatMulBytesFewBits(_FewBits):
    """The same with rows whose blocks are signed bytes times a factor.

    A block of a row and a column adds `((row @ numbers) - zero * less) * scale * factor`; without
    an operand `zero` it is 1 everywhere. Four successive summands are the same bits of the four
    bytes of a word, the first ones the lowest of each byte.

    Shapes:
        x: i8[..., k]; factor, less: f32[..., blocks]; w, scale, zero: see `MatMulFewBits`
        -> f32[..., n]
    """

    n: Expr
    bits: int

    def infer(
        self,
        x: TensorType,
        factor: TensorType,
        less: TensorType,
        w: TensorType,
        scale: TensorType,
        zero: TensorType | None = None,
    ) -> TensorType:
        if x.dtype is not DType.I8 or x.rank < 1:
            raise self.reject("needs rows of signed bytes", x, w)
        self.check(x, w, scale, zero)
        wanted = TensorType((*x.shape[:-1], scale.shape[-2]), DType.F32)
        if factor != wanted or less != wanted:
            raise self.reject(f"blocks of rows have no {wanted}", factor, less)
        return TensorType((*x.shape[:-1], self.n), DType.F32)

    def compute(
        self,
        x: te.Tensor,
        factor: te.Tensor,
        less: te.Tensor,
        w: te.Tensor,
        scale: te.Tensor,
        *zeros: te.Tensor,
    ) -> te.Tensor:
        (*stack, _, words, nr), blocks = w.shape, scale.shape[-2]
        length, quads = canonical(words // blocks), _BYTE // self.bits
        mask = const((1 << self.bits) - 1, DType.U32)

        def whole(*out: Expr) -> te.Reduce:
            *row, block, j = out

            def term(i: Expr, *part: Expr) -> Expr:
                *quad, e = part
                k = block * length + i
                number: Expr = w[(*row[: len(stack)], j // nr, k, j % nr)]
                for q in quad:
                    number = binary(BinOp.SHR, number, cast(DType.U32, q * self.bits))
                    k = k * quads + q
                number = binary(BinOp.SHR, number, cast(DType.U32, e * _BYTE))
                left, right = x[(*row, k * _QUAD + e)], binary(BinOp.BITAND, number, mask)
                return cast(DType.I32, left) * cast(DType.I32, right)

            inside = (index(quads),) if quads > 1 else ()
            return te.reduce_sum((length, *inside, index(_QUAD)), term)

        lead = x.shape[:-1]
        dots = te.compute(f"{self.name}_dots", (*lead, blocks, self.n), whole, inputs=(x, w))

        def element(*out: Expr) -> te.Reduce:
            *row, j = out

            def term(block: Expr) -> Expr:
                at, here = (*row[: len(stack)], j // nr, block, j % nr), (*row, block)
                taken: Expr = less[here]
                for zero in zeros:
                    taken = cast(DType.F32, zero[at]) * taken
                number = cast(DType.F32, dots[(*here, j)]) - taken
                return number * cast(DType.F32, scale[at]) * factor[here]

            return te.reduce_sum((blocks,), term)

        inputs = (dots, factor, less, scale, *zeros)
        return te.compute(self.name, (*lead, self.n), element, inputs=inputs)

    def reference(
        self, x: Array, factor: Array, less: Array, w: Array, scale: Array, *zeros: Array
    ) -> Array:
        numbers = self.numbers(w, places_of_quads(self.bits)).astype(np.float64)
        *stack, panels, depth, nr = numbers.shape
        blocks, lead = scale.shape[-2], x.ndim - 1 - len(stack)  # of the rows of a matrix
        beside = (*stack, *[1] * lead)
        columns = np.moveaxis(numbers, -3, -2)
        columns = columns.reshape(*beside, blocks, depth // blocks, panels * nr)
        rows = x.astype(np.float64).reshape(*x.shape[:-1], blocks, 1, depth // blocks)
        dots = (rows @ columns)[..., 0, :]
        by_block = [
            np.moveaxis(a, -3, -2).reshape(*beside, blocks, panels * nr)
            for a in as_f64(scale, *zeros)
        ]
        taken, times = (a[..., None] for a in as_f64(less, factor))
        for zero in by_block[1:]:
            taken = taken * zero
        (n,) = constants((self.n,))
        found: Array = ((dots - taken) * by_block[0] * times).sum(axis=-2)[..., :n]
        return found
