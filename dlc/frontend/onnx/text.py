"""Converters of operators on texts.

Source: https://onnx.ai/onnx/operators/onnx__StringConcat.html and its siblings
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.automaton import NotRegular, automaton
from dlc.frontend.onnx.cast import cast_to
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.generate import expand_to
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.reshape import reshape_to, unsqueeze
from dlc.frontend.onnx.selection import true_places
from dlc.frontend.onnx.slicing import concat
from dlc.frontend.onnx.stretch import Stretcher
from dlc.graph.graph import Value
from dlc.graph.op import Array
from dlc.graph.ops.binary import Add, Equal, Where
from dlc.graph.ops.elementwise import Not
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.text import ConcatText, CountFields, Fields, MapText, MatchText
from dlc.te.expr import ZERO, Expr, maximum
from dlc.te.simplify import canonical
from dlc.te.tensor import broadcast_shape


def text_array(values: Sequence[str]) -> Array:
    """A vector of texts."""
    array = np.empty(len(values), np.object_)
    array[:] = values
    return array


def texts(ctx: Context, values: Sequence[str]) -> Value:
    """A constant vector of texts."""
    return ctx.constant(text_array(values))


def check_texts(ctx: Context, *operands: Value) -> None:
    """Refuse operands that are no texts."""
    for operand in operands:
        if operand.type.dtype is not DType.STR:
            ctx.refuse(f"'{operand.name}' is no tensor of texts: {operand.type}")


@converter("StringConcat", since=20)
def convert_string_concat(ctx: Context, a: Value, b: Value) -> Value:
    """Each text of a followed by that of b."""
    check_texts(ctx, a, b)
    a, b = Stretcher(decides=True).together(ctx, (a, b))
    shape = broadcast_shape([a.type.shape, b.type.shape])
    return ctx.call(ConcatText(), expand_to(ctx, a, shape), expand_to(ctx, b, shape))


@converter("StringSplit", since=20)
def convert_string_split(
    ctx: Context, x: Value, *, delimiter: str = "", maxsplit: int | None = None
) -> tuple[Value, Value]:
    """The parts of each text, empty texts behind them, and how many there are."""
    check_texts(ctx, x)
    most = -1 if maxsplit is None or maxsplit < 0 else maxsplit
    cut = texts(ctx, [delimiter])
    counts = ctx.call(CountFields(most=most), x, cut)
    width = most_of(ctx, counts, "the number of parts")
    return ctx.call(Fields(width=width, most=most), x, cut), counts


def most_of(ctx: Context, counts: Value, what: str, *, beside: int = 0) -> Expr:
    """The largest of some counts as a size, and what stands beside as many, if there are any."""
    flat = reshape_to(ctx, counts, (canonical(counts.type.elems),))
    with_zero = concat(ctx, [flat, ctx.constant(np.zeros(1, np.int64))], 0)
    most = ctx.call(Reduce(kind="max", axes=(0,), keepdims=False), with_zero)
    if beside:
        none = ctx.call(Equal(), most, ctx.scalar(0, DType.I64))
        more = ctx.call(Add(), most, ctx.scalar(beside, DType.I64))
        most = ctx.call(Where(), none, most, more)
    return maximum(ctx.one_size(most, what), ZERO)


@converter("RegexFullMatch", since=20)
def convert_regex_full_match(ctx: Context, x: Value, *, pattern: str) -> Value:
    """Whether the pattern describes a whole text."""
    check_texts(ctx, x)
    try:
        table, ends = automaton(pattern)
    except NotRegular as error:
        ctx.refuse(f"the pattern '{pattern}' is not handled: {error}")
    return ctx.call(MatchText(), x, ctx.constant(table), ctx.constant(ends))


@converter("StringNormalizer", since=10)
def convert_string_normalizer(
    ctx: Context,
    x: Value,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str = "",
    stopwords: Sequence[str] = (),
) -> Value:
    """The texts that are no stopwords, in another case; an empty text where none is left.

    The case of characters is Unicode's, one character for one, whatever the locale.
    """
    check_texts(ctx, x)
    if case_change_action not in ("NONE", "LOWER", "UPPER"):
        ctx.refuse(f"case_change_action = '{case_change_action}' is not known")
    if x.type.rank not in (1, 2):
        ctx.refuse(f"it takes a vector or one row of texts, not {x.type}")
    row = reshape_to(ctx, x, (x.type.shape[-1],))
    kept = _without(ctx, row, stopwords, bool(is_case_sensitive)) if stopwords else row
    if case_change_action != "NONE":
        kept = in_case(ctx, kept, case_change_action)
    return kept if x.type.rank == 1 else unsqueeze(ctx, kept, (0,))


def _without(ctx: Context, row: Value, stopwords: Sequence[str], exact: bool) -> Value:
    compared = row if exact else in_case(ctx, row, "LOWER")
    words = texts(ctx, stopwords)
    columns = words if exact else in_case(ctx, words, "LOWER")
    same = ctx.call(Equal(), unsqueeze(ctx, compared, (1,)), columns)
    stops = ctx.call(Reduce(kind="max", axes=(1,), keepdims=False), cast_to(ctx, same, DType.I32))
    stays = ctx.call(Not(), cast_to(ctx, stops, DType.BOOL))
    any_stays = ctx.call(
        Reduce(kind="max", axes=(0,), keepdims=True),
        concat(ctx, [cast_to(ctx, stays, DType.I32), ctx.constant(np.zeros(1, np.int32))], 0),
    )
    none = ctx.call(Not(), cast_to(ctx, any_stays, DType.BOOL))
    longer = concat(ctx, [row, texts(ctx, [""])], 0)
    return ctx.call(Gather(axis=0), longer, true_places(ctx, concat(ctx, [stays, none], 0)))


def in_case(ctx: Context, x: Value, action: str) -> Value:
    """All characters in lower or in upper case."""
    return ctx.call(MapText(), x, ctx.constant(_case_table(action)))


@functools.cache
def _case_table(action: str) -> Array:
    """The characters that have another form in this case, and that form."""
    forms = ((c, chr(c).lower() if action == "LOWER" else chr(c).upper()) for c in range(0x110000))
    pairs = [(c, ord(form)) for c, form in forms if len(form) == 1 and ord(form) != c]
    table = np.array(pairs, np.int32)
    table.flags.writeable = False
    return table
