"""Inputs that are no tensors: a sequence is an input for each element, an optional its value.

How many elements a sequence has is part of the compiled model; the caller says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from dlc.core.errors import ModelError, UserError
from dlc.frontend.onnx.model import OnnxValue

Shape = Sequence[int | str | None]
"""A shape given by the caller: None leaves a dimension as it is, a name makes it variable."""
Structure = Shape | Sequence[Shape] | None
"""What the caller says of an input: its shape; of a sequence the shape of each element; None of an
optional that has no value."""
Parts = dict[str, tuple[str, ...] | None]


def spread(
    label: str, declared: Sequence[OnnxValue], shapes: Mapping[str, Structure]
) -> tuple[list[OnnxValue], dict[str, Shape], Parts]:
    """The inputs that are tensors, their shapes as given, and what the others are made of.

    Element 2 of the sequence `x` is the input `x[2]`. Elements share no size by name: each may
    have sizes of its own.

    Raises:
        ModelError: nobody says how long a sequence is, or the shapes given fit a tensor only.
        UserError: a shape is none.
    """
    tensors: list[OnnxValue] = []
    flat: dict[str, Shape] = {}
    parts: Parts = {}
    for value in declared:
        given = shapes.get(value.name)
        if given is not None and not _is_listed(given):
            hint = f"give its sizes: shapes={{'{value.name}': (1, 3)}}"
            raise UserError(detail=f"the shape of '{value.name}' cannot be {given!r}", hint=hint)
        if value.optional and given is None and value.name in shapes:
            parts[value.name] = None
        elif value.sequence:
            elements = _elements(label, value, given)
            parts[value.name] = tuple(element.name for element, _ in elements)
            tensors += (element for element, _ in elements)
            flat |= {element.name: shape for element, shape in elements}
        else:
            tensors.append(value)
            if given is not None:
                flat[value.name] = cast("Shape", given)
    return tensors, flat, parts


def _is_listed(given: object) -> bool:
    """Whether it is a list, or whatever has elements as one has."""
    try:
        return not isinstance(given, str | bytes) and len(given) >= 0  # type: ignore[arg-type]
    except TypeError:
        return False


def _elements(label: str, value: OnnxValue, given: Structure) -> list[tuple[OnnxValue, Shape]]:
    if given is None or any(isinstance(shape, int | str | None) for shape in given):
        raise ModelError(
            model=label,
            reason=f"input '{value.name}' is a sequence, and nobody says how long it is",
            hint=f"give the shape of each element: shapes={{'{value.name}': [(...), (...)]}}",
        )
    dims = value.dims
    if dims is not None:
        dims = tuple(d if isinstance(d, int) else None for d in dims)
    return [
        (replace(value, name=f"{value.name}[{i}]", dims=dims, sequence=False), shape)
        for i, shape in enumerate(cast("Sequence[Shape]", given))
    ]
