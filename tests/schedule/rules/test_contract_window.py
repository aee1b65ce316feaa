"""A contraction, a window over its image and another contraction run line by line, in a ring."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.target import Target
from dlc.schedule.loop import Func, LoopKind, Scope, allocs, loops
from dlc.schedule.rules import contract_window, prepare, schedule_func
from dlc.schedule.rules.contract_window import Ring
from dlc.schedule.trace import Trace
from dlc.te.expr import index
from tests.schedule.rules.nests import AVX512, N, assert_agree
from tests.schedule.rules.windows import narrowed

TINY = replace(AVX512, l2_bytes=1 << 14)  # a line of 10 pixels of 64 channels is 2560 bytes
TWO_CORES = replace(TINY, cores=2)


def matched(plain: Func, target: Target) -> Ring | None:
    trace = Trace(plain)
    prepare(trace, target)
    return contract_window.match(trace.func, target)


def scheduled(plain: Func, target: Target = TINY, knobs: dict[str, int] | None = None) -> Func:
    """The nest by the rule, which computes the same."""
    assert matched(plain, target) is not None
    fast = schedule_func(plain, target, knobs or {}).func
    assert_agree(plain, fast, {})
    return fast


def ring_of(fast: Func) -> tuple[int, ...]:
    """The shape of the only image that lives longer than a line."""
    (rolled,) = (
        a.buffer.type.static_shape
        for f in loops(fast.body).values()
        if f.kind is LoopKind.PARALLEL and allocs(f.body)
        for a in [next(iter(allocs(f.body).values()))]
    )
    return rolled


@pytest.mark.parametrize("halo", [False, True])
@pytest.mark.parametrize(("stride", "kernel"), [(1, 3), (2, 3), (1, 5), (2, 5)])
def test_a_ring_holds_the_lines_of_a_window(stride: int, kernel: int, halo: bool) -> None:
    target = replace(TINY, l2_bytes=stride * (kernel // 2) << 14)
    fast = scheduled(narrowed(20, 8, stride, kernel=kernel, halo=halo), target)
    wide = 7 * stride + kernel
    assert ring_of(fast) == (1, 4, kernel, wide, 16)


@pytest.mark.thorough
@pytest.mark.parametrize("before", ["", "window", "planar"])
@pytest.mark.parametrize(("high", "stride", "images"), [(24, 1, 1), (12, 2, 1), (16, 1, 3)])
def test_what_the_image_is_made_of_may_be_a_window_or_planar(
    before: str, high: int, stride: int, images: int
) -> None:
    target = replace(TWO_CORES, l2_bytes=stride << 14)
    fast = scheduled(narrowed(high, 8, stride, images, before=before), target)
    scopes = [a.scope for a in allocs(fast.body).values()]
    assert scopes.count(Scope.LOCAL) == 2 + (before == "window"), "sums are in registers"
    parallel = [f for f in loops(fast.body).values() if f.kind is LoopKind.PARALLEL]
    assert [f.extent for f in parallel if allocs(f.body)] == [index(2 * images)]


@pytest.mark.parametrize(
    ("high", "target", "parts"),
    [
        (16, TINY, 1),
        (32, TINY, 2),  # where another program takes the core, half is left
        (24, TWO_CORES, 2),
        (16, TWO_CORES, None),  # two lines of nine would be computed twice
        (25, TWO_CORES, None),  # a core would wait
        (64, replace(TINY, cores=4), 4),
        (31, TINY, 1),  # a prime number of lines
    ],
)
def test_parts_leave_no_core_waiting_and_compute_little_twice(
    high: int, target: Target, parts: int | None
) -> None:
    found = matched(narrowed(high, 8), target)
    assert (high // found.part if found else None) == parts


@pytest.mark.parametrize("lines", [5, 8, 16])
def test_a_part_of_chosen_lines_divides_the_image(lines: int) -> None:
    fast = scheduled(narrowed(16, 8), TINY, {"lines": lines})
    parallel = [f for f in loops(fast.body).values() if f.kind is LoopKind.PARALLEL]
    assert [f.extent for f in parallel if allocs(f.body)] == [index(16 // {5: 4}.get(lines, lines))]


@pytest.mark.parametrize(
    ("plain", "target"),
    [
        (narrowed(16, 8), AVX512),  # the image stays in the second cache
        (narrowed(16, 24), TINY),  # its ring does not
        (narrowed(64, 8), replace(TINY, l2_bytes=(1 << 14) - 64)),  # nor do weights
        (narrowed(64, 5), TINY),  # less than a tile of pixels
        (narrowed(16, 8, before="phases"), TINY),  # its lines are not made one by one
        (narrowed(16, 8, kernel=1), TINY),  # windows have nothing in common
        (narrowed(N, 8), TINY),
        (narrowed(16, N), TINY),
        (narrowed(16, 8, images=N), TINY),
    ],
)
def test_others_are_left_to_other_rules(plain: Func, target: Target) -> None:
    assert matched(plain, target) is None
