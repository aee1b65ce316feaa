"""Buffers that are alive together never share a byte, for any sizes; memory is reused otherwise."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlc.core.types import INDEX, DType
from dlc.schedule.launch_memory import place_buffers
from dlc.schedule.loop import Buffer, Func, Store
from dlc.schedule.memory import LINES, Request, plan_arena
from dlc.schedule.program import ALIGNMENT, CallKernel, HostLoop
from dlc.te.expr import ZERO, Const, Expr, Load, Var
from dlc.te.simplify import canonical
from dlc.te.types import TensorType

F = TensorType((Const(1, INDEX),), DType.F32)
X0 = Load("x", (ZERO,), DType.F32)

N, M = Var("n"), Var("m")
SIZES: list[Expr] = [
    N * 4, M * 12 + 4, N * M * 4, (N + 1) // 2 * 8, N * 256, N * 1000, N * M * 300, N * M * 1024,
    (N + 1) // 2 * 512, (N + M) * 260, N * 512 + 512, (N - 3) * 512, N * M * 512 - N * 512,
]  # fmt: skip


def value(expr: Expr, n: int, m: int) -> int:
    """How many bytes a size or an offset is: none for what is below nothing."""
    return max(0, int(eval(str(expr), {}, {"n": n, "m": m, "min": min, "max": max})))


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


def test_what_a_batch_has_shares_a_region_whatever_the_sizes() -> None:
    """Each size had regions of its own: activations of an open batch fell out of the caches."""
    sizes = [N * 1000, N * 2048, N * 300, N * 3000, N * 640]
    places, regions = plan_arena([Request(f"b{i}", s, i, i + 1) for i, s in enumerate(sizes)])
    assert {place for place, _ in places.values()} == {0}
    assert regions == (canonical(N * (3008 + 640)),)


@pytest.mark.parametrize(("each", "regions"), [(LINES * ALIGNMENT, 1), (LINES * ALIGNMENT - 1, 2)])
def test_small_parts_of_a_batch_are_not_rounded_to_lines(each: int, regions: int) -> None:
    found = [Request("a", N * 512, 0, 1), Request("b", N * each, 2, 3)]
    assert len(plan_arena(found)[1]) == regions


def test_nothing_needs_no_memory() -> None:
    assert plan_arena([]) == ({}, ())


def level_of(life: tuple[int, int]) -> range:
    return range(life[0], life[1] + 1)


@pytest.mark.thorough
@given(requests(), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), min_size=12))
def test_what_lives_on_one_level_shares_no_byte(
    found: list[Request], levels: list[tuple[int, int]]
) -> None:
    """Neither does what lives together: levels forbid more, and allow nothing."""
    found = [
        replace(r, levels=(low, low + more)) for r, (low, more) in zip(found, levels, strict=False)
    ]
    places, _ = plan_arena(found)
    for position, a in enumerate(found):
        for b in found[position + 1 :]:
            if places[a.name][0] != places[b.name][0]:
                continue
            spans = []
            for request in (a, b):
                begin = value(places[request.name][1], 7, 5)
                spans.append(range(begin, begin + value(request.size_bytes, 7, 5)))
            steps = level_of((a.first, a.last)), level_of((b.first, b.last))
            meet = set(level_of(a.levels)) & set(level_of(b.levels)) or set(steps[0]) & set(
                steps[1]
            )
            assert not meet or not set(spans[0]) & set(spans[1])


KERNELS = {
    "one": Func("one", (), (Buffer("x", F),), (Buffer("y", F),), Store("y", (ZERO,), X0)),
}  # fmt: skip


def chain(*names: str) -> list[CallKernel]:
    return [CallKernel("one", (), pair) for pair in itertools.pairwise(names)]


def test_branches_take_no_memory_from_each_other() -> None:
    """Serially, what the first branch leaves would serve the second one."""
    body = (*chain("x", "a", "b", "y"), *chain("x", "c", "d", "z"))
    buffers = [Buffer(n, F) for n in "abcd"]
    places, regions = place_buffers(body, buffers, KERNELS)
    assert len({p.offset for p in places}) == 4
    assert regions == (Const(4 * ALIGNMENT, INDEX),)


def test_a_chain_uses_memory_again() -> None:
    body = (*chain("x", *"abcdef", "y"),)
    places, regions = place_buffers(body, [Buffer(n, F) for n in "abcdef"], KERNELS)
    assert len(places) == 6
    assert regions == (Const(2 * ALIGNMENT, INDEX),)


def test_all_of_a_loop_is_behind_what_it_uses() -> None:
    loop = HostLoop("t", Const(3, INDEX), tuple(chain("b", "c", "d", "b")))
    body = (*chain("x", "a", "b"), loop, *chain("d", "e", "y"))
    places, _ = place_buffers(body, [Buffer(n, F) for n in "abcde"], KERNELS)
    at = {p.buffer.name: p.offset for p in places}
    assert len({at[n] for n in "bcd"}) == 3
    assert at["a"] in {at["c"], at["d"]}  # which nothing uses before the loop
