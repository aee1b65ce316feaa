"""What a caller passes to a model, in the order of the model's inputs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from dlc.core.count import show_inputs
from dlc.core.errors import InputError, UserError

Feeds = Mapping[str, object]
"""Values by the names of inputs."""


def check_count(names: Sequence[str], values: Sequence[object]) -> None:
    """Refuse another number of values than there are inputs.

    Raises:
        InputError: a value is missing, or one too many.
    """
    if len(values) < len(names):
        reason = f"it is missing; the inputs are {', '.join(names)}"
        raise InputError(name=names[len(values)], reason=reason)
    if len(values) > len(names):
        known = f"the model has {len(names)}: {', '.join(names)}"
        raise InputError(name=f"number {len(values)}", reason=f"there is no such input; {known}")


def in_order(names: Sequence[str], first: Sequence[object], named: Feeds) -> tuple[object, ...]:
    """Values of which the first are given in order, and the others by name.

    Raises:
        InputError: a value is missing, one too many, or given twice.
    """
    if len(first) > len(names):
        check_count(names, first)
    feeds = dict(zip(names, first, strict=False))
    if twice := feeds.keys() & named.keys():
        raise InputError(name=min(twice), reason="it is given both in order and by name")
    return by_name(names, {**feeds, **named})


def by_name(names: Sequence[str], feeds: Feeds) -> tuple[object, ...]:
    """Values that are given by name.

    Raises:
        InputError: a value is missing, or is of no input.
        UserError: `feeds` is no mapping.
    """
    try:
        if len(feeds) == len(names):
            return tuple([feeds[name] for name in names])
    except (KeyError, TypeError, IndexError):
        pass  # said properly below
    if not isinstance(feeds, Mapping):
        hint = "pass a dict, run({name: array}), or the arrays in order: model(array)"
        raise UserError(
            detail=f"expected inputs by name, got one {type(feeds).__name__}", hint=hint
        )
    for name in feeds:
        if name not in names:
            raise no_such_input(name, names)
    missing = next(name for name in names if name not in feeds)
    raise InputError(name=missing, reason=f"it is missing; the inputs are {', '.join(names)}")


def no_such_input(name: str, names: Sequence[str]) -> InputError:
    """The error for a name that is none of the inputs'."""
    close = difflib.get_close_matches(str(name), names, 1, 0.5)
    return InputError(
        name=name,
        reason=f"there is no such input; {show_inputs(names)}",
        hint=f"did you mean '{close[0]}'?" if close else "",
    )
