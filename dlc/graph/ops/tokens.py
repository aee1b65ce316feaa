"""The tokens of texts, which automata find: matches, or what lies between them.

A match is the longest one that begins at the first place where one begins. What a token may look
like before and behind a match is part of the automata (see `frontend/onnx/automaton.py`):

- `table` [states, 256] holds the next state for each state and byte; in state 0 it stays.
- `ends` [states] says where a match may end: bit 0 at the end of the text, bit 1 before a byte that
  is no part of a word, bit 2 before one that is.
- `begins` [automata, 3] are the states where a match begins: at the start of the text, behind a
  byte that is no part of a word, behind one that is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from dlc.core.types import DType
from dlc.graph.op import Array, Fuse, op
from dlc.graph.ops.attributes import constants, set_size
from dlc.graph.ops.text import TextOp
from dlc.te.expr import Expr, index
from dlc.te.types import TensorType

AT_END, BEFORE_OTHER, BEFORE_WORD = 1, 2, 4
_WORD = re.compile(rb"\w", re.ASCII)
START_MARK, END_MARK = "\x02", "\x03"


class _TokenOp(TextOp):
    """Texts, and the automata that look for their tokens.

    `least` is how many characters a token has at least. Shorter matches, and the first character
    behind an empty one, are passed over. `between`: tokens are what lies between matches; each
    automaton then cuts what the one before has left.
    """

    least: int
    between: bool
    automata: ClassVar = (DType.U16, DType.U8, DType.U16)

    def check(self, *operands: TensorType) -> None:
        """Refuse what is no text, and tables that are no automata."""
        x, table, ends, begins = operands
        super().check(x)
        is_table = table.rank == 2 and table.shape[1] == index(256)
        is_begins = begins.rank == 2 and begins.shape[1] == index(3)
        if (table.dtype, ends.dtype, begins.dtype) != self.automata or not is_table:
            raise self.reject("its table is no automaton", *operands)
        if ends.shape != table.shape[:1] or not is_begins:
            raise self.reject("its automata end or begin elsewhere", *operands)

    def sizes(self, *operands: TensorType) -> tuple[Expr, ...]:
        x, _, _, begins = operands
        return (x.elems, begins.shape[0], index(self.least), index(int(self.between)))

    def tokens(self, text: str, table: Array, ends: Array, begins: Array) -> list[str]:
        """The tokens of one text."""
        found = [text.encode("utf-8", "surrogateescape")]
        for first in begins:
            split = _between if self.between else _matches
            found = [p for piece in found for p in split(piece, self.least, table, ends, first)]
        return [piece.decode("utf-8", "surrogateescape") for piece in found]


@op("count_tokens", fuse=Fuse.OPAQUE)
class CountTokens(_TokenOp):
    """How many tokens each text has."""

    least: int
    between: bool

    def infer(
        self, x: TensorType, table: TensorType, ends: TensorType, begins: TensorType
    ) -> TensorType:
        self.check(x, table, ends, begins)
        return TensorType(x.shape, DType.I64)

    def function(self, *operands: TensorType) -> str:
        return "count_tokens"

    def reference(self, x: Array, table: Array, ends: Array, begins: Array) -> Array:
        counts = [len(self.tokens(text, table, ends, begins)) for text in x.reshape(-1)]
        return np.array(counts, np.int64).reshape(x.shape)


@op("tokens", fuse=Fuse.OPAQUE)
class Tokens(_TokenOp):
    """The tokens of each text, `width` of them: empty texts behind the last.

    `marked`: the characters 2 and 3 stand before the first and behind the last.
    """

    least: int
    between: bool
    marked: bool
    width: Expr

    def __post_init__(self) -> None:
        set_size(self, "width")

    def infer(
        self, x: TensorType, table: TensorType, ends: TensorType, begins: TensorType
    ) -> TensorType:
        self.check(x, table, ends, begins)
        return TensorType((*x.shape, self.width), x.dtype)

    def function(self, *operands: TensorType) -> str:
        return "tokens"

    def sizes(self, *operands: TensorType) -> tuple[Expr, ...]:
        return (*super().sizes(*operands), index(int(self.marked)), self.width)

    def reference(self, x: Array, table: Array, ends: Array, begins: Array) -> Array:
        (width,) = constants((self.width,))
        result = np.full((x.size, width), "", np.object_)
        for row, text in zip(result, x.reshape(-1), strict=True):
            found = self.tokens(text, table, ends, begins)
            if self.marked:
                found = [START_MARK, *found, END_MARK]
            row[: len(found)] = found[:width]
        return result.reshape(*x.shape, width)


def _characters(text: bytes) -> int:
    """How many characters bytes of UTF-8 are."""
    return sum(byte & 0xC0 != 0x80 for byte in text)


def _next(text: bytes, at: int) -> int:
    """Where the next character begins."""
    at += 1
    while at < len(text) and text[at] & 0xC0 == 0x80:
        at += 1
    return at


def find(
    text: bytes, start: int, table: Array, ends: Array, begins: Array
) -> tuple[int, int] | None:
    """Where the first match from a byte on begins, and where the longest one there ends."""
    while start <= len(text):
        before = text[start - 1 : start] if start else b""
        state = int(begins[0 if not start else 2 if _WORD.match(before) else 1])
        last, at = -1, start
        while state:
            behind = text[at : at + 1]
            place = AT_END if not behind else BEFORE_WORD if _WORD.match(behind) else BEFORE_OTHER
            if ends[state] & place:
                last = at
            if not behind:
                break
            state = int(table[state, behind[0]])
            at += 1
        if last >= 0:
            return start, last
        start = _next(text, start)
    return None


def _matches(text: bytes, least: int, table: Array, ends: Array, begins: Array) -> Iterator[bytes]:
    start = 0
    while found := find(text, start, table, ends, begins):
        first, last = found
        is_token = _characters(text[first:last]) >= least
        if is_token:
            yield text[first:last]
        start = last if is_token else _next(text, first)


def _between(text: bytes, least: int, table: Array, ends: Array, begins: Array) -> Iterator[bytes]:
    start = 0
    while found := find(text, start, table, ends, begins):
        first, last = found
        if _characters(text[start:first]) >= least:
            yield text[start:first]
        start = last if last > first else _next(text, first)
    if _characters(text[start:]) >= least:
        yield text[start:]
