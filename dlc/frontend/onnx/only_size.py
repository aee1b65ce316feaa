"""A size variable for which a node has a meaning at one value only."""

from __future__ import annotations

from dlc.te.affine import coefficients
from dlc.te.expr import Const, Expr, Var
from dlc.te.simplify import simplify


class OnlySize(Exception):
    """A node has a meaning for one value of a size variable only."""

    def __init__(self, node: str, variable: str, value: int) -> None:
        super().__init__(f"node '{node}' has a meaning for {variable} = {value} only")
        self.variable = variable
        self.value = value


def only_solution(difference: Expr) -> tuple[str, int] | None:
    """The variable and its value for which a linear expression is 0."""
    factors = coefficients(difference)
    if factors is None or len(factors) != 1:
        return None
    ((name, factor),) = factors.items()
    rest = simplify(difference - Var(name) * factor)
    if not isinstance(rest, Const) or int(rest.value) % factor or -int(rest.value) // factor < 0:
        return None
    return name, -int(rest.value) // factor
