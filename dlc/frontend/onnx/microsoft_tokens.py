"""Converters of onnxruntime's operators on tokens: they are found, must not repeat, are hashed.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dlc.core.types import DType
from dlc.frontend.onnx.automaton import NotRegular, searchers
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.grams import window
from dlc.frontend.onnx.indices import checked
from dlc.frontend.onnx.microsoft import DOMAIN
from dlc.frontend.onnx.registry import converter
from dlc.frontend.onnx.text import check_texts, most_of, texts
from dlc.graph.graph import Value
from dlc.graph.ops.binary import Add, And, BitShift, BitwiseOr, BitwiseXor, Equal, Mul, Where
from dlc.graph.ops.bits import BitCast
from dlc.graph.ops.scatter import ScatterElements
from dlc.graph.ops.shape import Expand
from dlc.graph.ops.tokens import CountTokens, Tokens
from dlc.te.expr import ONE, ZERO, index, maximum
from dlc.te.simplify import canonical


@converter("NGramRepeatBlock", since=1, domain=DOMAIN)
def convert_ngram_repeat_block(
    ctx: Context, tokens: Value, scores: Value, *, ngram_size: int
) -> Value:
    """Minus infinity for each token that would end an n-gram which is there already.

    Shapes:
        tokens: [batch, length]; scores: [batch, vocabulary] -> as scores
    """
    if ngram_size < 1 or tokens.type.rank != 2 or scores.type.rank != 2:
        ctx.refuse(f"n-grams of {ngram_size} in {tokens.type} for scores {scores.type}")
    before = ngram_size - 1
    batch, length = tokens.type.shape
    count = canonical(maximum(length - before, ZERO))
    repeats = ctx.call(Expand(shape=(batch, count)), ctx.constant(np.ones((), np.bool_)))
    for i in range(before):
        own = window(ctx, tokens, index(i), count)
        last = window(ctx, tokens, maximum(length - before + i, ZERO), ONE)
        repeats = ctx.call(And(), repeats, ctx.call(Equal(), own, last))
    ends = window(ctx, tokens, length - count, count)
    dtype = scores.type.dtype
    never, free = (ctx.scalar(v, dtype) for v in (-math.inf, math.inf))
    most = ctx.call(Where(), repeats, never, free)
    inside = checked(ctx, ends, (scores.type.shape[1],), negative=False)
    return ctx.call(ScatterElements(axis=1, reduction="min"), scores, inside, most)


@converter("MurmurHash3", since=1, domain=DOMAIN)
def convert_murmur_hash(ctx: Context, x: Value, *, positive: int = 1, seed: int = 0) -> Value:
    """The hash of each number of 32 bits, as an unsigned or a signed one.

    Source: Austin Appleby, MurmurHash3_x86_32, in the public domain
    """
    if x.type.dtype not in (DType.I32, DType.U32):
        ctx.refuse(f"the hash of elements of type {x.type.dtype} is not handled")
    key = x if x.type.dtype is DType.U32 else ctx.call(BitCast(of=DType.I32, to=DType.U32), x)
    key = _times(ctx, _turned(ctx, _times(ctx, key, 0xCC9E2D51), 15), 0x1B873593)
    mixed = _turned(ctx, ctx.call(BitwiseXor(), key, _word(ctx, seed)), 13)
    mixed = ctx.call(Add(), _times(ctx, mixed, 5), _word(ctx, 0xE6546B64))
    y = ctx.call(BitwiseXor(), mixed, _word(ctx, 4))  # bytes of a key
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        y = _times(ctx, _folded(ctx, y, shift), factor)
    y = _folded(ctx, y, 16)
    return y if positive else ctx.call(BitCast(of=DType.U32, to=DType.I32), y)


def _word(ctx: Context, number: int) -> Value:
    return ctx.constant(np.array(number % 2**32, np.uint32))


def _times(ctx: Context, x: Value, factor: int) -> Value:
    return ctx.call(Mul(), x, _word(ctx, factor))


def _shifted(ctx: Context, x: Value, bits: int, direction: str) -> Value:
    return ctx.call(BitShift(direction=direction), x, _word(ctx, bits))


def _turned(ctx: Context, x: Value, bits: int) -> Value:
    """The bits moved to the left; those that fall out come in at the right."""
    low = _shifted(ctx, x, 32 - bits, "RIGHT")
    return ctx.call(BitwiseOr(), _shifted(ctx, x, bits, "LEFT"), low)


def _folded(ctx: Context, x: Value, bits: int) -> Value:
    return ctx.call(BitwiseXor(), x, _shifted(ctx, x, bits, "RIGHT"))


@converter("Tokenizer", since=1, domain=DOMAIN)
def convert_tokenizer(
    ctx: Context,
    x: Value,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] = (),
    tokenexp: str = "",
) -> Value:
    """The tokens of each text: matches of a pattern, or what lies between separators.

    Longest matches count, wherever the pattern has a choice. A separator "" alone stands for one
    token for each character.

    Shapes:
        x: [texts] or [rows, texts] -> x's, and the most tokens of a text
    """
    check_texts(ctx, x)
    if x.type.rank not in (1, 2):
        ctx.refuse(f"it takes a vector or a matrix of texts, not {x.type}")
    if not separators and not tokenexp:
        ctx.refuse("it needs separators or a tokenexp")
    by_character = tuple(separators) == ("",)
    if mincharnum < 1 or (mincharnum > 1 and by_character):
        ctx.refuse(f"mincharnum = {mincharnum} with separators {[*separators]}")
    between = bool(separators) and not by_character
    patterns = separators if between else ["(?s:.)" if by_character else tokenexp]
    try:
        automata = [ctx.constant(array) for array in searchers(patterns)]
    except NotRegular as error:
        ctx.refuse(f"of the patterns {[*patterns]} one is not handled: {error}")
    counts = ctx.call(CountTokens(least=mincharnum, between=between), x, *automata)
    width = most_of(ctx, counts, "the number of tokens", beside=2 if mark else 0)
    op = Tokens(least=mincharnum, between=between, marked=bool(mark), width=width)
    tokens = ctx.call(op, x, *automata)
    if not pad_value:
        return tokens
    is_empty = ctx.call(Equal(), tokens, texts(ctx, [""]))
    return ctx.call(Where(), is_empty, texts(ctx, [pad_value]), tokens)
