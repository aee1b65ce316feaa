"""Updates that are scattered: in order, in vectors, and by threads where they share no element."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

from dlc.core.types import DType
from dlc.graph.ops.scatter import ScatterElements, ScatterND
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func, LoopKind, allocs
from dlc.schedule.nest import stages
from dlc.schedule.pipeline import optimize
from dlc.schedule.work import operations
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType
from tests.schedule.rules.nests import AVX512, func


def scattered(op: ScatterElements | ScatterND, *shapes: tuple[int, ...]) -> Func:
    types = [TensorType(s, DType.I64 if n == 1 else DType.F32) for n, s in enumerate(shapes)]
    x, at, updates = (placeholder(name, t) for name, t in zip("abc", types, strict=True))
    return func((x, at, updates), op.compute(x, at, updates))


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_the_work_of_a_scatter_grows_with_its_updates(reduction: str) -> None:
    def work(rows: int) -> int:
        shapes = (rows, 16), (rows, 1), (rows, 16)
        return operations(scattered(ScatterND(reduction=reduction), *shapes).body) or 0

    assert work(1000) == 100 * work(10) > 0


@pytest.mark.parametrize("reduction", ["none", "add"])
@pytest.mark.parametrize(("axis", "kind"), [(0, LoopKind.SERIAL), (1, LoopKind.PARALLEL)])
def test_only_lines_that_share_no_element_are_scattered_at_a_time(
    axis: int, kind: str, reduction: str
) -> None:
    op = ScatterElements(axis=axis, reduction=reduction)
    fast = optimize(scattered(op, (9, 40), (9, 40), (9, 40)), AVX512)
    (stage,) = [s for s in stages(fast) if s.is_scattered]
    assert [f.kind for f in stage.loops] == [kind, LoopKind.SERIAL]


@pytest.mark.parametrize(
    ("op", "shape"), [(ScatterND(), (50, 2)), (ScatterElements(axis=0), (50, 9))], ids=str
)
def test_single_elements_are_written_in_order(
    op: ScatterElements | ScatterND, shape: tuple[int, ...]
) -> None:
    """A copy and a store for each update, of which the last one counts; nothing is searched."""
    updates = shape[:1] if isinstance(op, ScatterND) else shape
    nest = optimize(scattered(op, (5, 9), shape, updates), AVX512)
    assert not allocs(nest.body)
    (stage,) = [s for s in stages(nest) if s.is_scattered]
    assert {f.kind for f in stage.loops} == {LoopKind.SERIAL}
    rng = np.random.default_rng(1)
    b = rng.integers(0, 5, shape)
    new = np.arange(prod(updates), dtype=np.float32).reshape(updates)
    arrays = {"a": np.full((5, 9), -1.0, np.float32), "b": b, "c": new}
    (found,) = run_func(nest, {}, arrays).values()
    want = np.full((5, 9), -1.0, np.float32)
    if isinstance(op, ScatterND):
        want[b[:, 0], b[:, 1]] = new
    else:
        want[b, np.arange(9)] = new
    np.testing.assert_array_equal(found, want)


def test_rows_are_scattered_in_vectors() -> None:
    fast = optimize(scattered(ScatterND(reduction="add"), (9, 40), (7, 1), (7, 40)), AVX512)
    found = [s for s in stages(fast) if s.is_scattered]
    assert [f.kind for f in found[0].loops] == [LoopKind.SERIAL, LoopKind.SERIAL, LoopKind.VECTOR]
    assert {s.loops[0].kind for s in found} == {LoopKind.SERIAL}
