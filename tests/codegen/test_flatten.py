"""Indices as flat sums: what unrolled variables make of them, found part by part."""

import pytest

from dlc.codegen.llvm.flatten import Flattener
from dlc.te.expr import Expr, Select, Var, index, minimum
from dlc.te.poly import Poly
from dlc.te.transform import substitute

X, J, N, U, V = (Var(name) for name in "ijnuv")

INDICES = {
    "plain": X * 12 + U * 3 + V + 5,
    "divided": (X * 4 + U * 3 + V) // 7 * 10 + U,
    "digits": (U * 8 + V) // 3 * 3 + (U * 8 + V) % 3,
    "digits that meet": (X * 6 + U) // 4 * 4 + (X * 6 + U) % 4,
    "products": X * U * 3 + U * V + U * N,
    "chosen": Select(U < 1, index(7), Select(V < 2, X, J * 2)) * 5 + V,
    "smallest": minimum(N, X + U) - minimum(U, V),
    "whole again": (X * 6 + U * 2 + V * 6) // 2 + (X + U) % 1,
    "lane": (J * 2 + U) // 2 + J * 3 + V,
    "nothing": U * 0 + (U - U),
}


def flattener(*, lanes: bool) -> Flattener:
    made = Flattener()
    for name, extent in (("i", 9), ("j", 8), ("u", 5), ("v", 3)):
        made.bind(name, index(extent))
    made.lane_var, made.lanes = ("j", 8) if lanes else (None, 0)
    return made


def value(made: Flattener, expr: Expr) -> tuple[int, int | None, Poly]:
    const_part, lane, rest = made.flat(expr)
    return const_part, lane, made.rests[rest]


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("name", INDICES)
def test_an_index_is_what_it_is_with_numbers_in_it(name, lanes):
    expr, made = INDICES[name], flattener(lanes=lanes)
    for u in range(5):
        for v in range(3):
            made.fixed |= {"u": u, "v": v}
            want = value(flattener(lanes=lanes), substitute(expr, {"u": index(u), "v": index(v)}))
            assert value(made, expr) == want, (u, v)


def test_an_element_is_the_sum_of_its_steps():
    made = flattener(lanes=False)
    at, strides = (X + U, V, (J + U) // 2), (N * 6, index(6), index(1))
    for u in range(5):
        made.fixed |= {"u": u, "v": 2}
        whole = (X + u) * N * 6 + 12 + (J + u) // 2
        const_part, lane, rest = made.element(at, strides)
        assert (const_part, lane, made.rests[rest]) == value(flattener(lanes=False), whole)
