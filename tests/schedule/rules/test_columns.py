"""Reductions along columns: vectors of neighbours go together, in registers and in panels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.target import Target
from dlc.graph.ops.softmax import Softmax
from dlc.schedule.loop import LoopKind, Scope, allocs
from dlc.schedule.nest import stages
from dlc.schedule.pipeline import optimize
from dlc.te.expr import Expr
from dlc.te.types import const_size
from tests.schedule.rules.cases import CASES
from tests.schedule.rules.nests import AVX2, AVX512, M, N, assert_agree, func, tensor
from tests.schedule.rules.reductions import panel


@pytest.mark.parametrize(
    "name", ["softmax_channels", "softmax_channels_open", "arg_max_channels", "blocked_norm_open"]
)
def test_columns_are_summed_in_registers(name: str) -> None:
    fast = optimize(CASES[name](), AVX512)
    sums = [s for s in stages(fast) if s.is_reduction]
    known = allocs(fast.body)
    assert sums
    assert all(s.loops[-1].kind is LoopKind.VECTOR for s in sums)
    assert {known[s.buffer].scope for s in sums} == {Scope.REGISTER}


@pytest.mark.parametrize(
    ("shape", "target", "panels"),
    [
        ((40, 300), AVX512, "112 76"),
        ((40, 256), AVX512, "128"),
        ((40, 256), replace(AVX512, cores=8), "32"),
        ((40, 256), AVX2, "64"),
        ((40, 19), AVX512, "19"),
        ((40, M), AVX512, "128 128"),
        ((15, 256), AVX512, ""),
        ((40, 16), AVX512, ""),
    ],
)
def test_vectors_of_columns_go_together(
    shape: tuple[int | Expr, ...], target: Target, panels: str
) -> None:
    """Each core has a panel; few rows, and a single vector, need none."""
    fast = optimize(panel("max", *shape), target)
    found = [a.buffer.type.shape[-1] for n, a in allocs(fast.body).items() if n.endswith("_panel")]
    assert " ".join(map(str, found)) == panels
    sums = [s for s in stages(fast) if s.is_reduction]
    assert all(s.loops[-1].kind is LoopKind.VECTOR for s in sums)
    results = [s for s in stages(fast) if s.buffer == "out"]
    assert all(s.loops[-1].kind is LoopKind.VECTOR for s in results)


def test_a_panel_of_many_rows_stays_in_the_second_cache() -> None:
    x = tensor("a", 3, 1024, 512)
    fast = optimize(func((x,), Softmax(axis=1).compute(x)), AVX512)
    found = [a.buffer for n, a in allocs(fast.body).items() if n.endswith("_panel")]
    assert len(found) == 2
    rows = 1024 * const_size(found[0].type.shape[-1]) * 4  # of the image, and of what is made of it
    assert 2 * rows == AVX512.l2_bytes // 2


@pytest.mark.parametrize("n", [0, 1, 33])
@pytest.mark.parametrize("m", [127, 128, 300])
def test_panels_of_open_columns_and_what_they_leave(n: int, m: int) -> None:
    plain = panel("sum", N, M)
    assert_agree(plain, optimize(plain, AVX512), {"n": n, "m": m})
