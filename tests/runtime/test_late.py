"""Outputs whose shape only a run can tell, and the memory a run asks for on the way."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import dlc
from dlc.core.errors import UserError
from dlc.core.manifest import TensorSpec, seal
from dlc.core.types import DType
from tests.runtime.affine import AFFINE, compile_model
from tests.runtime.test_output_memory import resident

MANIFEST = {
    "sizes": (),
    "inputs": (TensorSpec("count", DType.I64, (1,)),),
    "outputs": (TensorSpec("y", DType.F32, ("k",)),),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> dlc.Module:
    path = tmp_path_factory.mktemp("late") / "late.so"
    compile_model(path, "late.c")
    seal(path, type(AFFINE)(AFFINE.dlc_version, AFFINE.architecture, **MANIFEST))
    return dlc.load(path)


@pytest.fixture
def model(loaded) -> dlc.Module:
    """A copy of its own: what other tests left behind is not here."""
    return type(loaded)(loaded._native)


def test_each_run_tells_its_shape(model):
    assert model.output_shapes({"count": np.array([3])}) == {"y": (-1,)}
    kept = [model(np.array([n])) for n in (3, 0, 1, 100_000, 7)]
    for n, y in zip((3, 0, 1, 100_000, 7), kept, strict=True):
        np.testing.assert_array_equal(y, np.arange(n))  # no later run has written to it


def test_a_large_output_is_not_copied(model):
    """It is the memory that the run has written to: there is none beside it."""
    count = 10_000_000
    before = resident()
    y = model(np.array([count]))
    assert resident() - before < 1.5 * y.nbytes
    np.testing.assert_array_equal(y[::1000], np.arange(0, count, 1000))


def test_memory_goes_to_the_next_runs(model):
    first, second = model(np.array([5000])), model(np.array([5001]))
    places = {y.ctypes.data for y in (first, second)}
    assert len(places) == 2
    del first
    assert model(np.array([5000])).ctypes.data in places
    np.testing.assert_array_equal(second, np.arange(5001))


def test_memory_that_is_much_too_large_is_left(model):
    large = model(np.array([1_000_000])).ctypes.data
    small = model(np.array([5000]))
    assert small.ctypes.data != large
    np.testing.assert_array_equal(small, np.arange(5000))
    assert model(np.array([1_000_000])).ctypes.data == large


def test_no_memory_is_a_failure_like_others(model):
    with pytest.raises(UserError, match="no memory"):
        model(np.array([1 << 60]))
    np.testing.assert_array_equal(model(np.array([2])), [0, 1])


def test_an_impossible_shape_is_refused(model):
    with pytest.raises(UserError, match="impossible shape"):
        model(np.array([-1]))


def test_threads_do_not_share_memory(model):
    wrong: list[int] = []

    def work(n: int) -> None:
        found = (model(np.array([n])) for _ in range(200))
        wrong.extend(n for y in found if not np.array_equal(y, np.arange(n)))

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 10, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_outputs_of_unknown_shape_cannot_be_bound(model):
    with pytest.raises(UserError, match="depends on the data"):
        model.bind({"count": np.array([3])})
