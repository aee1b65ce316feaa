"""Operators on texts, which the runtime computes: a kernel sees texts only as their numbers.

Inside of a program a text is a number, equal where the texts are; the runtime keeps the list. The
pass `number_texts` changes a graph of texts into one of numbers, so each operator here takes and
gives either. All others move texts, or compare them for equality.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn

import numpy as np

from dlc.core.errors import InternalError
from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.attributes import constants, set_size
from dlc.te import tensor as te
from dlc.te.expr import Expr, index
from dlc.te.types import TensorType

TEXTS = (DType.STR, DType.I64)


class TextOp(Op):
    """An operator that is a call of a function of the runtime."""

    def function(self, *operands: TensorType) -> str:
        """The function, of those in `schedule/runtime_function.py`."""
        raise NotImplementedError

    def sizes(self, *operands: TensorType) -> tuple[Expr, ...]:
        """What the function is told besides its buffers; by default how many elements there are."""
        return (operands[0].elems,)

    def check(self, *operands: TensorType) -> None:
        """Refuse operands that are no texts."""
        if any(t.dtype not in TEXTS or t.dtype is not operands[0].dtype for t in operands):
            raise self.reject("its operands are no texts", *operands)

    def compute(self, *operands: te.Tensor) -> NoReturn:
        raise InternalError(detail=f"texts are of the runtime, not of a kernel: {self.name}")


@op("number_of_text", fuse=Fuse.OPAQUE)
class NumberOfText(TextOp):
    """The number of each text."""

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype is not DType.STR:
            raise self.reject("its operand is no text", x)
        return TensorType(x.shape, DType.I64)

    def function(self, *operands: TensorType) -> str:
        return "number"

    def reference(self, x: Array) -> Array:
        raise InternalError(detail="the numbers of texts exist in a run only")


@op("text_of_number", fuse=Fuse.OPAQUE)
class TextOfNumber(TextOp):
    """The text of each number."""

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype is not DType.I64:
            raise self.reject("its operand is no number", x)
        return TensorType(x.shape, DType.STR)

    def function(self, *operands: TensorType) -> str:
        return "text"

    def reference(self, x: Array) -> Array:
        raise InternalError(detail="the numbers of texts exist in a run only")


@op("number_of_bytes", fuse=Fuse.OPAQUE)
class NumberOfBytes(TextOp):
    """The numbers of constant texts: their bytes one behind the other, and where each ends."""

    def infer(self, data: TensorType, ends: TensorType) -> TensorType:
        if data.rank != 1 or data.dtype is not DType.U8 or ends.dtype is not DType.I64:
            raise self.reject("needs bytes and where each text ends", data, ends)
        return TensorType(ends.shape, DType.I64)

    def function(self, *operands: TensorType) -> str:
        return "constant"

    def sizes(self, *operands: TensorType) -> tuple[Expr, ...]:
        return (operands[1].elems,)

    def reference(self, data: Array, ends: Array) -> Array:
        raise InternalError(detail="the numbers of texts exist in a run only")


@op("concat_text", fuse=Fuse.OPAQUE)
class ConcatText(TextOp):
    """Each text of a, followed by that of b."""

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        self.check(a, b)
        if a.shape != b.shape:
            raise self.reject("its operands differ in shape", a, b)
        return a

    def function(self, *operands: TensorType) -> str:
        return "concat"

    def reference(self, a: Array, b: Array) -> Array:
        return np.asarray(a + b, np.object_)


@op("place_of_text", fuse=Fuse.OPAQUE)
class PlaceOfText(TextOp):
    """Where in a vector of keys each text is, first; -1 where it is not."""

    def infer(self, x: TensorType, keys: TensorType) -> TensorType:
        self.check(x, keys)
        if keys.rank != 1:
            raise self.reject("its keys are no vector", x, keys)
        return TensorType(x.shape, DType.I64)

    def function(self, *operands: TensorType) -> str:
        return "places"

    def sizes(self, *operands: TensorType) -> tuple[Expr, ...]:
        return (operands[0].elems, operands[1].elems)

    def reference(self, x: Array, keys: Array) -> Array:
        first = {key: place for place, key in reversed([*enumerate(keys.tolist())])}
        return _each(lambda text: first.get(text, -1), x).astype(np.int64)


@op("map_text", fuse=Fuse.OPAQUE)
class MapText(TextOp):
    """Each character by its row of a table: [character, what stands for it], in order."""

    def infer(self, x: TensorType, table: TensorType) -> TensorType:
        self.check(x)
        if table.rank != 2 or table.dtype is not DType.I32:
            raise self.reject("its table is no table of characters", x, table)
        return x

    def function(self, *operands: TensorType) -> str:
        return "map"

    def sizes(self, *operands: TensorType) -> tuple[Expr, ...]:
        return (operands[0].elems, operands[1].shape[0])

    def reference(self, x: Array, table: Array) -> Array:
        by = {int(a): int(b) for a, b in table}
        return _each(lambda text: text.translate(by), x)


@op("match_text", fuse=Fuse.OPAQUE)
class MatchText(TextOp):
    """Whether each text is in a language: an automaton reads its bytes.

    `table` holds the next state for each state and byte; the first state is 1, and in state 0 it
    stays. `ends` are the states in which a text may end.
    """

    def infer(self, x: TensorType, table: TensorType, ends: TensorType) -> TensorType:
        self.check(x)
        wanted = (index(256),)
        if table.dtype is not DType.U16 or table.shape[1:] != wanted or ends.dtype is not DType.U8:
            raise self.reject("its table is no automaton", x, table, ends)
        if table.shape[0] != ends.elems:
            raise self.reject("its automaton has ends for other states", x, table, ends)
        return TensorType(x.shape, DType.BOOL)

    def function(self, *operands: TensorType) -> str:
        return "match"

    def sizes(self, *operands: TensorType) -> tuple[Expr, ...]:
        return (operands[0].elems, operands[1].shape[0])

    def reference(self, x: Array, table: Array, ends: Array) -> Array:
        def accepts(text: str) -> bool:
            state = 1
            for byte in text.encode("utf-8", "surrogateescape"):
                state = int(table[state, byte])
            return bool(ends[state])

        return _each(accepts, x).astype(np.bool_)


def _fields(text: str, delimiter: str, most: int) -> list[str]:
    return text.split(delimiter or None, most)


@op("count_fields", fuse=Fuse.OPAQUE)
class CountFields(TextOp):
    """Into how many parts each text falls at a delimiter; white space where that is empty.

    `most` is how often a text is split at most; -1: everywhere.
    """

    most: int = -1

    def infer(self, x: TensorType, delimiter: TensorType) -> TensorType:
        self.check(x, delimiter)
        return TensorType(x.shape, DType.I64)

    def function(self, *operands: TensorType) -> str:
        return "count_fields"

    def sizes(self, *operands: TensorType) -> tuple[Expr, ...]:
        return (operands[0].elems, index(self.most))

    def reference(self, x: Array, delimiter: Array) -> Array:
        cut = delimiter.reshape(-1)[0]
        return _each(lambda text: len(_fields(text, cut, self.most)), x).astype(np.int64)


@op("fields", fuse=Fuse.OPAQUE)
class Fields(TextOp):
    """The parts of each text, `width` of them: empty texts behind the last. See `CountFields`."""

    width: Expr
    most: int = -1

    def __post_init__(self) -> None:
        set_size(self, "width")

    def infer(self, x: TensorType, delimiter: TensorType) -> TensorType:
        self.check(x, delimiter)
        return TensorType((*x.shape, self.width), x.dtype)

    def function(self, *operands: TensorType) -> str:
        return "fields"

    def sizes(self, *operands: TensorType) -> tuple[Expr, ...]:
        return (operands[0].elems, index(self.most), self.width)

    def reference(self, x: Array, delimiter: Array) -> Array:
        (width,) = constants((self.width,))
        cut = delimiter.reshape(-1)[0]
        result = np.full((x.size, width), "", np.object_)
        for row, text in zip(result, x.reshape(-1), strict=True):
            found = _fields(text, cut, self.most)[:width]
            row[: len(found)] = found
        return result.reshape(*x.shape, width)


@op("read_numbers", fuse=Fuse.OPAQUE)
class ReadNumbers(TextOp):
    """The number that each text is; a run refuses others. Any case of inf and nan is known."""

    to: DType

    def infer(self, x: TensorType) -> TensorType:
        self.check(x)
        if self.to not in (DType.F64, DType.I64):
            raise self.reject(f"texts are read as f64 or i64, not {self.to}", x)
        return TensorType(x.shape, self.to)

    def function(self, *operands: TensorType) -> str:
        return f"read_{self.to}"

    def reference(self, x: Array) -> Array:
        return x.astype(np.float64 if self.to is DType.F64 else np.int64)


@op("write_numbers", fuse=Fuse.OPAQUE)
class WriteNumbers(TextOp):
    """Each number as the shortest text that is read back as the same."""

    numbered: bool = False
    """Whether the result is the numbers of the texts."""
    kinds: ClassVar = (DType.F32, DType.F64, DType.I64)

    def infer(self, x: TensorType) -> TensorType:
        if x.dtype not in self.kinds:
            raise self.reject("it writes f32, f64 and i64", x)
        return TensorType(x.shape, DType.I64 if self.numbered else DType.STR)

    def function(self, *operands: TensorType) -> str:
        return f"write_{operands[0].dtype}"

    def reference(self, x: Array) -> Array:
        return x.astype(np.str_).astype(np.object_)


_MOVERS = frozenset({
    "branch", "concat", "depth_to_space", "equal", "expand", "gather", "gather_elements",
    "gather_nd", "identity", "loop", "one_hot", "pad", "reshape", "reverse_sequence", "scan",
    "scatter_elements", "scatter_nd", "slice", "space_to_depth", "tensor_scatter", "tile",
    "transpose", "where",
})  # fmt: skip


def takes_texts(op: Op) -> bool:
    """Whether an operator may be given texts: it moves them, or compares them for equality."""
    return isinstance(op, TextOp) or op.name in _MOVERS


def _each(function: object, x: Array) -> Array:
    made = np.frompyfunc(function, 1, 1)(x)  # type: ignore[call-overload]
    return np.asarray(made, np.object_)
