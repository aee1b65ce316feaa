"""What a schedule primitive is: a named function from loop IR to loop IR.

A schedule is a list of steps, so it is data: it prints, compares, saves as JSON and replays. Every
primitive either returns a function that computes the same thing or raises `ScheduleError`; there
is no flag to skip the check.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Concatenate, NoReturn, ParamSpec

from dlc.core.errors import ScheduleError, UserError
from dlc.schedule.edit import loops_around
from dlc.schedule.loop import Alloc, For, Func, LoopKind, Scope, allocs, loops, names_in
from dlc.schedule.verify import RESERVED, verify_func

P = ParamSpec("P")
PRIMITIVES: dict[str, Callable[..., Func]] = {}
_SIGNATURES: dict[str, inspect.Signature] = {}


@dataclass(frozen=True, slots=True)
class Step:
    """One call of one primitive, as data: `args` follow the function."""

    primitive: str
    args: tuple[object, ...]


def primitive(fn: Callable[Concatenate[Func, P], Func]) -> Callable[Concatenate[Func, P], Func]:
    """Register a primitive and verify what it returns."""

    @functools.wraps(fn)
    def checked(func: Func, /, *args: P.args, **kwargs: P.kwargs) -> Func:
        result = fn(func, *args, **kwargs)
        verify_func(result, when=f"after {fn.__name__}")
        return result

    assert fn.__name__ not in PRIMITIVES, f"primitive {fn.__name__} is declared twice"
    PRIMITIVES[fn.__name__] = checked
    _SIGNATURES[fn.__name__] = inspect.signature(fn)
    return checked


def replay(func: Func, steps: Iterable[Step]) -> Func:
    """Apply a saved schedule.

    Raises:
        ScheduleError: a step names no primitive, has the wrong number of arguments, or is refused.
    """
    import dlc.schedule.primitives  # noqa: F401 - registers the primitives, which import this

    for step in steps:
        apply = PRIMITIVES.get(step.primitive)
        if apply is None:
            hint = f"the primitives are {', '.join(sorted(PRIMITIVES))}"
            refuse(step.primitive, func, "there is no such primitive", hint)
        try:
            _SIGNATURES[step.primitive].bind(func, *step.args)
        except TypeError as error:
            refuse(step.primitive, func, str(error))
        func = apply(func, *step.args)
    return func


def steps_to_json(steps: Iterable[Step]) -> str:
    """A schedule as JSON: a list of [primitive, [arguments]]."""
    return json.dumps([[s.primitive, s.args] for s in steps])


def steps_from_json(text: str) -> tuple[Step, ...]:
    """Read what `steps_to_json` wrote.

    Raises:
        UserError: the text is not a schedule.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(detail=f"not a schedule: {error}") from error
    match data:
        case [*entries]:
            return tuple(_step(entry) for entry in entries)
    raise UserError(detail="not a schedule: not a list of steps")


def _step(entry: object) -> Step:
    match entry:
        case [str(name), [*args]]:
            return Step(name, tuple(_freeze(a) for a in args))
    raise UserError(detail=f"not a step of a schedule: {entry!r}")


def _freeze(value: object) -> object:
    return tuple(map(_freeze, value)) if isinstance(value, list) else value


def refuse(primitive: str, func: Func, reason: str, hint: str = "") -> NoReturn:
    """Raise the error every failed legality check raises."""
    raise ScheduleError(primitive=primitive, func=func.name, reason=reason, hint=hint)


def find_loop(primitive: str, func: Func, var: str) -> For:
    """The loop named `var`, or a `ScheduleError` that lists the loops there are."""
    found = loops(func.body)
    if var not in found:
        refuse(primitive, func, f"there is no loop '{var}'", f"the loops are {', '.join(found)}")
    return found[var]


def find_serial(primitive: str, func: Func, var: str) -> For:
    """As `find_loop`; the loop must still run in order."""
    loop = find_loop(primitive, func, var)
    if loop.kind is not LoopKind.SERIAL:
        refuse(primitive, func, f"loop '{var}' is already {loop.kind}", f"{primitive} it before")
    return loop


def find_intermediate(primitive: str, func: Func, name: str) -> Alloc:
    """The allocation of a buffer, or a `ScheduleError` that lists the intermediates there are."""
    found = allocs(func.body)
    if name not in found:
        hint = f"the intermediates are {', '.join(found)}" if found else ""
        refuse(primitive, func, f"there is no intermediate '{name}'", hint)
    return found[name]


def check_fresh(
    primitive: str, func: Func, names: Iterable[str], *, freed: Iterable[str] = ()
) -> None:
    """Refuse new names that are taken. `freed` are those of loops and buffers they replace."""
    taken = names_in(func) - set(freed)
    for name in names:
        if name in taken:
            refuse(primitive, func, f"the name '{name}' is taken")
        if not name.isidentifier() or name in RESERVED:
            refuse(primitive, func, f"'{name}' cannot be a name")
        taken.add(name)


def check_scope(primitive: str, func: Func, scope: str) -> None:
    """Refuse a scope that there is none of."""
    if scope not in list(Scope):
        refuse(primitive, func, f"there is no scope '{scope}'", f"known: {', '.join(Scope)}")


def check_outside_vectors(primitive: str, func: Func, loop: str) -> None:
    """Refuse a loop that is a vector loop or inside of one."""
    for outer in loops_around(func, loop):
        if outer.kind is LoopKind.VECTOR:
            refuse(primitive, func, f"loop '{loop}' is inside the vector loop '{outer.var}'")
