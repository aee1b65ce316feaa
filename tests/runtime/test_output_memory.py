"""Memory of large outputs: aligned, used again, and kept in moderation."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dlc.core.types import DType
from dlc.runtime import Module

pytestmark = pytest.mark.fast

MB = 1 << 20


@pytest.fixture
def module(identity: Callable[[DType], Module]) -> Module:
    """Returns its inputs. A copy of its own: what other tests left behind is not here."""
    made = identity(DType.F32)
    return type(made)(made._native)


def run(module: Module, length: int, fill: float = 1.0) -> np.ndarray:
    return module.run({"scalar": 1.0, "vector": np.full(length, fill, np.float32)})["out"]


def place(array: np.ndarray) -> int:
    return array.ctypes.data


def test_an_output_lies_where_an_earlier_one_was_that_is_gone(module: Module) -> None:
    first, second = run(module, 5000, 1.0), run(module, 5000, 2.0)
    places = {place(first), place(second)}
    assert len(places) == 2
    assert (first == 1).all()
    del first
    third = run(module, 5000, 3.0)
    assert {place(second), place(third)} == places
    assert (second == 2).all()
    assert (third == 3).all()


@pytest.mark.parametrize("length", [4096, 5001, 300_000, 3_000_001])
def test_large_outputs_are_aligned_and_can_be_written(module: Module, length: int) -> None:
    y = run(module, length)
    assert place(y) % 64 == 0
    assert y.flags.writeable
    assert y.shape == (length,)


def test_a_view_keeps_the_memory(module: Module) -> None:
    view = run(module, 5000, 1.0)[1000:]
    later = run(module, 5000, 2.0)
    assert (view == 1).all()
    assert (later == 2).all()


def test_memory_that_is_much_too_large_is_left(module: Module) -> None:
    large = place(run(module, 50_000))
    assert place(run(module, 20_000)) != large
    assert place(run(module, 30_000)) == large


def test_outputs_that_grow_from_run_to_run_are_written_where_earlier_ones_were(
    module: Module,
) -> None:
    places, last = set(), None
    for length in range(50_000, 50_100):  # of two outputs, one is held while the next is made
        last = run(module, length)
        places.add(place(last))
    assert last is not None
    assert len(places) <= 4


def test_what_is_kept_is_what_one_run_needs(module: Module) -> None:
    held = [run(module, 10 * MB) for _ in range(6)]
    before = resident()
    held.clear()
    freed = before - resident()
    assert 4 * 40 * MB <= freed <= 5 * 40 * MB  # two outputs: two of the six may stay


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def test_outputs_outlive_their_module(module: Module) -> None:
    y = run(module, 5000)
    module.close()
    gc.collect()
    assert (y == 1).all()


def test_outputs_of_threads_are_apart(module: Module) -> None:
    def is_right(fill: int) -> bool:
        ys = [run(module, 5000 + 1000 * (fill % 3), fill) for _ in range(3)]
        return all((y == fill).all() for y in ys)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(is_right, range(400)))
