"""What a matrix engine takes is measured by products that are right, and counts if it is slow."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from dlc.codegen.llvm import engine_loop, engine_rate
from dlc.codegen.llvm.emit import emit_func
from dlc.codegen.llvm.engine_loop import (
    Effort,
    _on_lines,
    measure_tile_cycles,
    random_panels,
    tile_loop,
)
from dlc.codegen.llvm.engine_rate import counted, native_tile_cycles
from dlc.core.cache import Cache
from dlc.core.machine import read_machine
from dlc.core.target import TILE_CYCLES
from tests.codegen.jit import NATIVE, Kernel
from tests.codegen.tiles import TILES

ENGINE = replace(NATIVE, features=NATIVE.features | TILES | {"avx512bf16"})


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """An empty cache."""
    cache = Cache(tmp_path)
    monkeypatch.setattr(engine_rate, "default_cache", lambda: cache)
    return cache


def answers(monkeypatch, *given):
    """Have a measurement give these, one after the other, and no more."""
    rest = iter(given)
    monkeypatch.setattr(engine_rate, "_measured_apart", lambda: next(rest))


@pytest.mark.usefixtures("matrix_engine")
def test_the_loop_adds_each_product_of_panels_twice():
    rows, columns = random_panels(16, 1, 32), random_panels(16, 16, 2)
    sums = Kernel(tile_loop(), ENGINE)({"n": 18}, {"rows": rows, "columns": columns})["sums"]
    a = rows.astype(np.float64)[..., 0, :]  # [panel, tile, row, depth]
    b = columns.astype(np.float64).transpose(0, 1, 2, 4, 3).reshape(-1, 2, 32, 16)
    times = np.where(np.arange(len(a)) < 18 - len(a), 4, 2)  # the first panels come once more
    wanted = np.einsum("p,pard,pbdc->abrc", times, a, b)
    np.testing.assert_allclose(sums, wanted, atol=1e-5 * np.abs(wanted).max())


def test_operands_begin_at_a_line_of_a_cache():
    for offset in range(1, 40, 3):
        array = np.arange(100, dtype=np.float32)[offset:].reshape(-1, 1)
        copy = _on_lines(array)
        assert copy.ctypes.data % 64 == 0
        assert copy.dtype == array.dtype
        np.testing.assert_array_equal(copy, array)


def test_a_step_has_the_products_that_are_counted():
    ir = emit_func(tile_loop(), ENGINE)
    assert ir.count("call void @llvm.x86.tdpbf16ps") == engine_loop.PRODUCTS
    assert ir.count("call void @llvm.x86.tileloadd64") == 4


@pytest.mark.usefixtures("matrix_engine")
def test_both_loops_are_timed():
    effort = Effort(rounds=2, apart_s=0.0, round_s=0.0, tile_steps=8, fma_steps=20_000)
    assert 1.0 < measure_tile_cycles(ENGINE, effort) < 1e7  # an emulated one takes 1e5


@pytest.mark.parametrize(
    ("measured", "cycles"),
    [(16.0, 23), (23.4, 23), (28.7, 23), (29.1, 35), (39.0, 35), (41.0, 45), (85.0, 45)],
)
def test_an_engine_counts_as_usual_unless_it_is_clearly_slower(measured, cycles):
    assert TILE_CYCLES == 23
    assert counted(measured) == cycles


def test_a_machine_is_measured_once(kept, monkeypatch):
    answers(monkeypatch, 41.0)
    assert native_tile_cycles(ENGINE) == 45
    assert native_tile_cycles(ENGINE) == 45  # by the cache: there is no second answer


def test_an_engine_is_measured_again_later_and_the_mean_counts(kept, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    answers(monkeypatch, 20.0, 0.0, 64.0, 31.0)
    found = []
    for clock[0] in (0.0, 299.0, 300.0, 301.0, 500.0, 601.0):
        found.append(native_tile_cycles(ENGINE))
    usual = TILE_CYCLES  # also where the second measurement fails
    assert found == [usual, usual, usual, 45, 45, 35]


def test_an_engine_is_measured_some_times(kept, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.time", lambda: clock[0])
    answers(monkeypatch, 60.0, *[61.0] * 5)
    for clock[0] in range(0, 20 * 300, 300):
        assert native_tile_cycles(ENGINE) == 45


def test_a_machine_of_another_name_is_measured_too(kept, monkeypatch):
    answers(monkeypatch, 41.0, 20.0)
    assert native_tile_cycles(ENGINE) == 45
    here = read_machine()
    monkeypatch.setattr(engine_rate, "read_machine", lambda: replace(here, name="another"))
    assert native_tile_cycles(ENGINE) == TILE_CYCLES


@pytest.mark.parametrize(
    "failure",
    [
        subprocess.TimeoutExpired("python", 20.0),
        subprocess.CalledProcessError(-4, "python"),
        OSError("no process"),
    ],
)
def test_a_measurement_that_fails_changes_nothing(kept, monkeypatch, failure):
    def fail(*_args, **_options):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", fail)
        assert native_tile_cycles(ENGINE) == TILE_CYCLES
    answers(monkeypatch, 41.0)  # the next build measures again
    assert native_tile_cycles(ENGINE) == 45


def test_a_program_that_is_no_python_does_not_start_itself(kept, monkeypatch):
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("it was started"))
    assert native_tile_cycles(ENGINE) == TILE_CYCLES


def test_another_process_measures_where_it_may():
    found = engine_rate._measured_apart()
    assert (found > 1.0) is (NATIVE.features >= TILES)
