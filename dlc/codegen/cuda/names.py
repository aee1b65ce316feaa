"""Names that C++ and the seam leave free. Names of loop IR are words of Python's."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

from dlc.schedule.abstract_sizes import replace_sizes
from dlc.schedule.edit import renamed
from dlc.schedule.loop import Buffer, Func, allocs, loops
from dlc.te.expr import Var

SEAM = Path(__file__).with_name("seam.cuh")

# Source: C++23 standard, [lex.key] and [lex.digraph]; the last line are macros and functions.
_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
char32_t class compl concept const const_cast consteval constexpr constinit continue co_await
co_return co_yield decltype default delete do double dynamic_cast else enum explicit export extern
false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
operator or or_eq private protected public register reinterpret_cast requires restrict return short
signed sizeof static static_assert static_cast struct switch template this thread_local throw true
try typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq
linux unix blockIdx threadIdx blockDim gridDim warpSize dlc main stdin stdout stderr
"""
_CALLED = re.compile(r"\b([A-Za-z_]\w*)[(<]|\btypedef [\w ]+ (\w+);|struct (\w+)")


@functools.cache
def reserved() -> frozenset[str]:
    """Every name that a printed kernel must not give to something of its own."""
    text = SEAM.read_text(encoding="utf-8")
    found = {name for groups in _CALLED.findall(text) for name in groups if name}
    return frozenset(found) | frozenset(_KEYWORDS.split())


def with_safe_names(func: Func) -> Func:
    """The same function under names that C++ takes."""
    names = [*func.sizes, *(b.name for b in func.params), *allocs(func.body), *loops(func.body)]
    taken = {n for n in names if _is_safe(n)}
    new = {n: _fresh(n, taken) for n in names if n not in taken}
    if not new:
        return func

    def buffer(b: Buffer) -> Buffer:
        return replace(b, name=new.get(b.name, b.name))

    func = replace_sizes(func, {Var(s): Var(new[s]) for s in func.sizes if s in new})
    return replace(
        func,
        sizes=tuple(new.get(s, s) for s in func.sizes),
        inputs=tuple(map(buffer, func.inputs)),
        outputs=tuple(map(buffer, func.outputs)),
        body=renamed(func.body, new, new),
        in_place=tuple((new.get(o, o), new.get(i, i)) for o, i in func.in_place),
    )


def _is_safe(name: str) -> bool:
    prefixed = name.startswith(("_", "dlc_", "DLC_"))
    return name.isascii() and not prefixed and name not in reserved()


def _fresh(name: str, taken: set[str]) -> str:
    plain = "".join(c if c.isascii() else "u" for c in name).strip("_") or "v"
    number = 1
    while (found := f"{plain}_v{number}") in taken:
        number += 1
    taken.add(found)
    return found
