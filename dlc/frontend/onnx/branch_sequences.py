"""Sequences that the two branches of an If give: tensors that both give, and what is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dlc.frontend.onnx.body import Body
from dlc.frontend.onnx.context import Context
from dlc.frontend.onnx.ragged import ElementType, Ragged
from dlc.frontend.onnx.sequence_parts import (
    Items,
    Part,
    Rows,
    common_type,
    element_type,
    elements,
    ragged,
    stacked_as,
)
from dlc.graph.graph import Value
from dlc.graph.sizes import bound_sizes

Branch = tuple[Body, tuple[Value, ...]]
"""A branch and what it gives."""


@dataclass(frozen=True, slots=True)
class Form:
    """A sequence of the same parts in both branches, behind which they differ.

    The rest is so many elements in both, or else elements of a type, of which a run knows how many.
    """

    same: tuple[Part, ...]
    rest: int | ElementType

    def with_rest(self, made: Iterator[Value]) -> tuple[Part, ...]:
        """The whole sequence, given what a run chooses."""
        if isinstance(self.rest, int):
            return (*self.same, *(next(made) for _ in range(self.rest)))
        if self.rest.fixed is not None:
            return (*self.same, Rows(next(made)))
        return (*self.same, Ragged(next(made), next(made), self.rest))


def together(
    ctx: Context, then: Branch, other: Branch
) -> tuple[list[Form | None], tuple[list[Value], list[Value]]]:
    """The form of each result, None for a tensor; and the tensors that each branch has to give."""
    if len(then[1]) != len(other[1]):
        ctx.refuse("its branches differ in the number of results")
    forms: list[Form | None] = []
    flat: tuple[list[Value], list[Value]] = ([], [])
    for a, b in zip(then[1], other[1], strict=True):
        if not isinstance(a, Items) and not isinstance(b, Items):
            forms.append(None)
            pair = ([a], [b])
        elif isinstance(a, Items) and isinstance(b, Items):
            form, pair = _shared(then[0], a, other[0], b)
            forms.append(form)
        else:
            ctx.refuse("which branch runs decides whether a result is a sequence")
        flat[0].extend(pair[0])
        flat[1].extend(pair[1])
    return forms, flat


def _shared(
    then: Body, a: Items, other: Body, b: Items
) -> tuple[Form, tuple[list[Value], list[Value]]]:
    count = 0
    while count < min(len(a.parts), len(b.parts)) and a.parts[count] == b.parts[count]:
        count += 1
    same, rest = a.parts[:count], (a.parts[count:], b.parts[count:])
    first, second = elements(rest[0]), elements(rest[1])
    if first is not None and second is not None and len(first) == len(second):
        return Form(same, len(first)), (list(first), list(second))
    found = [
        element_type(body, parts, bound_sizes(body.nodes))
        for body, parts in zip((then, other), rest, strict=True)
    ]
    types = [t for t in found if t is not None]
    if not types:
        then.refuse("nobody knows the type of what is in an empty sequence")
    element = types[0] if len(types) == 1 else common_type(then, *types)
    made = (_tensors(then, rest[0], element), _tensors(other, rest[1], element))
    return Form(same, element), made


def _tensors(body: Body, parts: Sequence[Part], element: ElementType) -> list[Value]:
    if element.fixed is not None:
        return [stacked_as(body, parts, element)]
    values = ragged(body, parts, element)
    return [values.data, values.shapes]
