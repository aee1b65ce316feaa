"""Names of values and size variables: ONNX allows any text, graph text needs identifiers."""

from __future__ import annotations

import builtins
import keyword
import re

from dlc.core.types import DType
from dlc.te.expr import BinOp, UnOp

_WORDS = (
    "alloc", "const", "def", "graph", "in_place", "inf", "invoke", "main", "nan", "parallel",
    "range", "register", "size", "unroll", "vectorize",
)  # fmt: skip
RESERVED = frozenset(
    {*_WORDS, *map(str, DType), *map(str, UnOp), *map(str, BinOp), *keyword.kwlist, *dir(builtins)}
)
"""Words that mean something in IR text."""
_OTHER = re.compile(r"[^0-9A-Za-z_]+")


class Names:
    """Hands out identifiers, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """An identifier like `hint` that was not handed out before."""
        base = _OTHER.sub("_", hint).strip("_") or "v"
        if base[0].isdigit():
            base = f"v{base}"
        name = f"{base}_" if base in RESERVED else base
        while name in self._taken:
            self._counts[base] = count = self._counts.get(base, 0) + 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name

    def copy(self) -> Names:
        """The same names handed out, for an attempt that may be given up."""
        other = Names()
        other._taken, other._counts = set(self._taken), dict(self._counts)
        return other

    def become(self, other: Names) -> None:
        """Take over what a copy has handed out."""
        self._taken, self._counts = other._taken, other._counts

    def free(self, name: str) -> None:
        """Take a name back."""
        self._taken.discard(name)
