"""What a run says where it fails: a sentence, and the values that were not as they should be.

A size that the program binds has a name of the compiler's own, so its formula is told, too, which
names the tensor that its elements are in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from dlc.codegen.llvm.host_expr import Failure, HostBuilder
from dlc.core.types import INDEX, LARGEST_INDEX, DType
from dlc.te.expr import Binary, BinOp, Cast, Const, Expr
from dlc.te.transform import free_vars, loads
from dlc.te.types import TensorType

_LARGEST = Const(LARGEST_INDEX, INDEX)
_MOST_VALUES = 6  # that a sentence tells
_LONGEST = 60  # characters of a formula that a sentence tells


class Reports:
    """Composes the failures of one function of a host program."""

    def __init__(self, out: HostBuilder) -> None:
        self.out = out
        self._formulas: dict[str, str] = {}  # of the sizes that the program binds

    def bound(self, name: str, value: Expr) -> None:
        """Note the formula of a size."""
        found = loads(value)
        text = re.sub(r"index\((\w+\[[^\[\]]*\])\)", r"\1", str(value)).replace("[()]", "")
        if found and len(text) <= _LONGEST:
            self._formulas[name] = f"{name} = {text}"
        elif found:
            of = ", ".join(dict.fromkeys(load.buffer for load in found))
            self._formulas[name] = f"{name}, computed of {of},"

    def failure(self, message: str, *read: Expr, also: Sequence[tuple[str, str]] = ()) -> Failure:
        """A message, and the values of the sizes and elements that expressions read.

        `also` are further values, in front: what is said of each, and the value.
        """
        shown = list(also)
        shown += [
            (f"{load} is".replace("[()]", ""), self.out.expr(Cast(DType.I64, load)))
            for load in dict.fromkeys(load for expr in read for load in loads(expr))
            if load.dtype.is_int
        ]
        for name in sorted({name for expr in read for name in free_vars(expr)}):
            if value := self.out.known(name):
                shown.append((f"{self._formulas.get(name, name)} is", value))
        shown = shown[:_MOST_VALUES]
        told = ", ".join(f"{what} {{}}" for what, _ in shown)
        return Failure(f"{message} ({told})" if told else message, tuple(v for _, v in shown))

    def unmet(self, cond: Expr, message: str) -> Failure:
        """A condition does not hold. A count without a bound can do no other than leave 64 bits."""
        is_count = isinstance(cond, Binary) and cond.op is BinOp.LE and cond.b == _LARGEST
        return replace(self.failure(message, cond), lacks_memory=is_count)

    def outside(self, message: str, size: Expr, value: str, limit: str) -> Failure:
        """An index that lies outside of a size, whose value is the limit."""
        shown = [("it is", value)]
        if not isinstance(size, Const):
            text = str(size) if len(str(size)) <= _LONGEST else "the size"
            shown.append((f"{self._formulas.get(text, text)} is", limit))
        return self.failure(message, also=shown)

    def no_memory(self, name: str, type_: TensorType, node: str) -> Failure:
        """There is no memory for a tensor whose shape the program found out."""
        where = f"{node}: " if node else ""
        too_large = self.failure(f"{where}the sizes of '{name}' are too large", *type_.shape)
        with self.out.failing(replace(too_large, lacks_memory=True)):
            sizes = tuple(self.out.expr(size) for size in type_.shape)
        shape = ", ".join("{}" for _ in sizes) + ("," if len(sizes) == 1 else "")
        said = f"{where}there is no memory for '{name}', {type_.dtype} of the shape ({shape})"
        return Failure(said, sizes, lacks_memory=True)
