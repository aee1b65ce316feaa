"""Buffers that are alive together never share a byte, for any sizes; memory is reused otherwise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dlc.core.types import INDEX
from dlc.graph.memory import Request, plan_arena
from dlc.schedule.program import ALIGNMENT
from dlc.te.expr import Const, Expr, Var

N, M = Var("n"), Var("m")
SIZES: list[Expr] = [N * 4, M * 12 + 4, N * M * 4, (N + 1) // 2 * 8]


def value(expr: Expr, n: int, m: int) -> int:
    return eval(str(expr), {}, {"n": n, "m": m})


@st.composite
def requests(draw: st.DrawFn) -> list[Request]:
    found = []
    for number in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 8))
        constant = st.integers(0, 1000).map(lambda v: Const(v, INDEX))
        size = draw(st.one_of(constant, st.sampled_from(SIZES)))
        found.append(Request(f"b{number}", size, first, first + draw(st.integers(0, 4))))
    return found


@given(requests(), st.integers(0, 70), st.integers(0, 70))
def test_what_lives_together_shares_no_byte(found: list[Request], n: int, m: int) -> None:
    places, regions = plan_arena(found)
    begins = [0]
    for size in regions:
        begins.append(begins[-1] + -(-value(size, n, m) // ALIGNMENT) * ALIGNMENT)
    spans = []
    for request in found:
        region, offset = places[request.name]
        begin = begins[region] + value(offset, n, m)
        end = begin + value(request.size_bytes, n, m)
        assert begin % ALIGNMENT == 0
        assert end <= begins[region + 1]
        spans.append((request, begin, end))
    for position, (a, a_begin, a_end) in enumerate(spans):
        for b, b_begin, b_end in spans[position + 1 :]:
            together = a.first <= b.last and b.first <= a.last
            empty = a_begin == a_end or b_begin == b_end
            assert empty or not together or a_end <= b_begin or b_end <= a_begin


def test_memory_of_the_dead_is_used_again() -> None:
    chain = [Request(f"b{i}", Const(640, INDEX), i, i + 1) for i in range(10)]
    assert plan_arena(chain)[1] == (Const(1280, INDEX),)
    symbolic = [Request(f"b{i}", N * 64, i, i + 1) for i in range(10)]
    assert plan_arena(symbolic)[1] == (N * 64, N * 64)


def test_nothing_needs_no_memory() -> None:
    assert plan_arena([]) == ({}, ())
