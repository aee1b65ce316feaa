"""One change of shape instead of two: reshape(reshape(x)), transpose(transpose(x)),
slice(slice(x)), concat(concat(x, y), z); and a transpose that moves only dimensions of size 1 is
a reshape.
"""

from __future__ import annotations

from dlc.graph.graph import Value
from dlc.graph.ops.shape import Concat, Reshape, Slice, Transpose
from dlc.graph.rewrite import Match, Pattern, Refusal, rule
from dlc.te.types import is_const


@rule(Pattern(Reshape, (Pattern(Reshape, ("x",), shared=True),)))
def reshape_into_reshape(match: Match) -> Value | Refusal:
    """Go to the last shape at once."""
    return match.call(Reshape(shape=match.root.output.type.shape), match["x"])


@rule(Pattern(Transpose, (Pattern(Transpose, ("x",), name="inner", shared=True),)))
def transpose_into_transpose(match: Match) -> Value | Refusal:
    """Compose the permutations."""
    outer, inner = match.root.op, match.maker("inner")
    assert isinstance(outer, Transpose)
    assert isinstance(inner, Transpose)
    return match.call(Transpose(perm=tuple(inner.perm[d] for d in outer.perm)), match["x"])


@rule(Pattern(Transpose, ("x",)))
def transpose_into_reshape(match: Match) -> Value | Refusal:
    """Keep the elements where they are."""
    shape, perm = match["x"].type.shape, match.op(Transpose).perm
    moved = [d for d in perm if not is_const(shape[d], 1)]
    if moved != sorted(moved):
        return Refusal("dimensions of several elements change places")
    if tuple(perm) == tuple(range(len(perm))):
        return Refusal("nothing moves, which is another rule's case")
    return match.call(Reshape(shape=match.root.output.type.shape), match["x"])


@rule(Pattern(Slice, (Pattern(Slice, ("x",), name="inner", shared=True),)))
def slice_into_slice(match: Match) -> Value | Refusal:
    """Add the starts, multiply the steps."""
    outer, inner = match.root.op, match.maker("inner")
    assert isinstance(outer, Slice)
    assert isinstance(inner, Slice)
    starts = zip(inner.starts, outer.starts, inner.strides, strict=True)
    op = Slice(
        starts=tuple(a + b * step for a, b, step in starts),
        sizes=outer.sizes,
        steps=tuple(a * b for a, b in zip(inner.strides, outer.strides, strict=True)),
    )
    return match.call(op, match["x"])


@rule(Pattern(Concat))
def concat_into_concat(match: Match) -> Value | Refusal:
    """Put the parts of a part side by side with the others.

    A part that others read stays for them; as the first part it shares the memory of the whole.
    """
    editor, outer = match.editor, match.op(Concat)
    axis = outer.axis % match.root.output.type.rank
    parts: list[Value] = []
    for position, value in enumerate(match.root.inputs):
        inner = editor.producer(value)
        nested = inner is not None and isinstance(inner.op, Concat)
        alone = editor.sole_user(value) is not None or position == 0
        if inner is not None and nested and alone and not editor.is_output(value):
            assert isinstance(inner.op, Concat)
            same = inner.op.axis % value.type.rank == axis
            parts.extend(inner.inputs if same else [value])
        else:
            parts.append(value)
    if len(parts) == len(match.root.inputs):
        return Refusal("no part is a concatenation along the same axis that only this one needs")
    return match.call(Concat(axis=axis), *parts)
