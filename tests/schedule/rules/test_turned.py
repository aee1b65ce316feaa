"""What lies across: tiles are transposed in registers."""

from __future__ import annotations

from math import prod

import pytest

from dlc.core.types import INDEX
from dlc.graph.ops.reduce import Reduce
from dlc.schedule.edit import loops_around
from dlc.schedule.loop import LoopKind, Scope, allocs
from dlc.schedule.nest import stages
from dlc.schedule.rules import across, schedule_func
from dlc.schedule.trace import Trace
from dlc.schedule.work import written_out
from dlc.te.expr import Const
from dlc.te.transform import free_vars, loads
from dlc.te.types import const_size
from tests.schedule.rules.cases import CASES
from tests.schedule.rules.moves import turned_and_as_it_is, unpacked
from tests.schedule.rules.nests import AVX512, N, func, of_kind, prepared, tensor


@pytest.mark.parametrize("name", ["unpacked", "turned_columns", "turned_with_rows", "turned_far"])
def test_no_vector_reads_across_what_is_stored(name: str) -> None:
    fast = schedule_func(CASES[name](), AVX512, {}).func
    tiles = [n for n, a in allocs(fast.body).items() if a.scope is Scope.REGISTER]
    assert tiles
    for stage in stages(fast):
        lane = stage.names[-1]
        for load in loads(stage.value):
            across = any(lane in free_vars(i) for i in load.index[:-1])
            assert not across or load.buffer in tiles


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("norm_of_turned", {56}),
        ("norm_of_turned_lines", {49}),
        ("norm_of_turned_open", {32}),
        ("norm_of_turned_prime_wide", {32, 197 % 32}),
    ],
)
def test_sums_of_neighbours_are_computed_together_in_vectors(name: str, counts: set[int]) -> None:
    fast = schedule_func(CASES[name](), AVX512, {}).func
    kept = allocs(fast.body)
    for stage in stages(fast):
        if stage.buffer in kept and "tile" not in stage.buffer:
            wide = [f for f in stage.loops if f.extent != Const(1, INDEX)]
            assert not wide or wide[-1].kind is LoopKind.VECTOR
            assert prod(map(const_size, kept[stage.buffer].buffer.type.shape)) in counts


@pytest.mark.parametrize(("name", "inside"), [("turned_with_rows", False), ("turned_far", True)])
def test_much_work_is_not_written_out_for_each_row_of_a_tile(name: str, inside: bool) -> None:
    fast = schedule_func(CASES[name](), AVX512, {}).func
    rows = [loops_around(fast, s.names[-1])[-2] for s in stages(fast) if s.buffer in ("out", "mul")]
    assert (LoopKind.UNROLL in {f.kind for f in rows}) is not inside


def test_of_an_open_number_of_lanes_whole_vectors_are_transposed() -> None:
    fast = schedule_func(unpacked(N), AVX512, {}).func
    tile = next(a for a in allocs(fast.body).values() if a.scope is Scope.REGISTER)
    assert tile.buffer.type.shape == (Const(16, INDEX), Const(16, INDEX))


def test_vectors_that_gather_from_the_same_lines_follow_each_other() -> None:
    fast = schedule_func(turned_and_as_it_is(), AVX512, {}).func
    (vector,) = of_kind(fast, LoopKind.VECTOR)
    loop = loops_around(fast, vector.var)[-2]
    (load,) = (
        x
        for s in stages(fast)
        for x in loads(s.value)
        if vector.var in s.names and vector.var not in free_vars(x.index[-1])
    )
    assert loop.var in free_vars(load.index[-1])


def test_lines_of_sums_are_no_text() -> None:
    """The lines that a sum without stages of its own along them was written to were text once."""
    x = tensor("a", 2, 48, 56, 64)
    plain = prepared(func((x,), Reduce(kind="sum", axes=(1,)).compute(x)))
    found = across.match(plain, AVX512)
    assert found is not None
    trace = Trace(plain)
    across.schedule(trace, found, AVX512, {})
    assert written_out(trace.func.body) < 100
