"""Launches that look for bad indices: what they report, in any order, and what it costs."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from dlc.codegen.cuda.compile import compile_units
from dlc.codegen.cuda.emit import Kernel, emit_kernel
from dlc.codegen.cuda.emulate import ORDERS, EmulationError, Emulator
from dlc.core.cache import Cache
from dlc.core.gpus import gpu_for
from dlc.graph.ops.gather import Gather, GatherND
from dlc.schedule.gpu import split_launches
from dlc.schedule.index_checks import Look, with_index_checks
from dlc.schedule.loop import Func
from dlc.schedule.pipeline import optimize
from tests.codegen.gpu import GPU
from tests.codegen.test_cuda_operators import lowered
from tests.graph.op_case import case

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def looking(func: Func, look: Look) -> Kernel:
    launches = with_index_checks(split_launches(optimize(func, GPU)), func, [look])
    (launch,) = launches.funcs
    return emit_kernel(launch, "pick", (), launches.checks)


@pytest.fixture(scope="module")
def picking() -> tuple[Kernel, Emulator]:
    """Rows of a table: 130 blocks look at 2600 places."""
    func = lowered(case(Gather(), "f32[50, 13]", "i64[2600]"))
    kernel = looking(func, Look("in1", True, 1))
    return kernel, Emulator([kernel], optimize=True)


def report(words: np.ndarray) -> tuple[int, int, int] | None:
    """Place, value and limit of a report."""
    if not words.any():
        return None
    parts = [int(~np.uint64(w)) for w in words[:6]]
    assert len({p >> 24 for p in parts}) == 1
    joined = [sum((p & 0xFFFFFF) << 24 * n for n, p in enumerate(parts[k : k + 3])) for k in (0, 3)]
    value, limit = (np.uint64(j & (2**64 - 1)).astype(np.int64) for j in joined)
    return parts[0] >> 24, int(value), int(limit)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("bad", "wanted"),
    [
        ({}, None),
        ({7: 50}, (7, 50, 50)),
        ({2599: -51}, (2599, -51, 50)),
        ({1999: -(2**63), 31: 2**63 - 1, 2000: 50}, (31, 2**63 - 1, 50)),
        ({1999: -(2**40) - 1, 2000: 50, 2001: 77}, (1999, -(2**40) - 1, 50)),
    ],
)
def test_the_first_place_is_reported_whatever_the_order(
    picking: tuple[Kernel, Emulator], bad: dict[int, int], wanted: object, order: str
) -> None:
    kernel, emulator = picking
    indices = np.arange(2600) % 100 - 50
    for place, value in bad.items():
        indices[place] = value
    x = np.arange(650, dtype=np.float32).reshape(50, 13)
    arrays = {"in0": x, "in1": indices, "out": np.zeros((2600, 13), np.float32)}
    reports = np.zeros(24, np.uint64)
    emulator.run(kernel, arrays, {"limit_1_1": 50, "report_1": 1}, order, reports)
    assert report(reports[8:16]) == wanted
    assert not reports[:8].any()
    assert not reports[16:].any()
    want = x[np.clip(np.where(indices < 0, indices + 50, indices), 0, 49)]
    np.testing.assert_array_equal(arrays["out"], want)


def test_a_number_below_0_asks_for_nothing(picking: tuple[Kernel, Emulator]) -> None:
    kernel, emulator = picking
    arrays = {
        "in0": np.zeros((50, 13), np.float32), "in1": np.full(2600, 99),
        "out": np.zeros((2600, 13), np.float32),
    }  # fmt: skip
    reports = np.zeros(8, np.uint64)
    emulator.run(kernel, arrays, {"limit_1_1": -1, "report_1": -1}, "forward", reports)
    assert not reports.any()
    with pytest.raises(EmulationError, match="out of bounds: 'reports'"):
        emulator.run(kernel, arrays, {"limit_1_1": 50, "report_1": 1}, "forward", reports)


def test_each_column_has_a_limit() -> None:
    func = lowered(case(GatherND(), "f32[7, 5]", "i32[40, 2]"))
    kernel = looking(func, Look("in1", False, 2))
    emulator = Emulator([kernel])
    x = np.arange(35, dtype=np.float32).reshape(7, 5)
    sizes = {"limit_1_1": 7, "limit_1_2": 5, "report_1": 0}
    for row, column, value in ((3, 0, 7), (3, 1, 5), (39, 1, 6), (0, 0, -1)):
        indices = np.stack([np.arange(40) % 7, np.arange(40) % 5], 1).astype(np.int32)
        for wrong in (False, True):
            if wrong:
                indices[row, column] = value
            reports = np.zeros(8, np.uint64)
            arrays = {"in0": x, "in1": indices, "out": np.zeros(40, np.float32)}
            emulator.run(kernel, arrays, sizes, "shuffled", reports)
            found = (2 * row + column, value, (7, 5)[column])
            assert report(reports) == (found if wrong else None)


@needs_nvcc
def test_a_launch_that_looks_compiles(picking: tuple[Kernel, Emulator], tmp_path) -> None:
    images, _ = compile_units([picking[0]], gpu_for(["sm_90"]), cache=Cache(tmp_path))
    assert b"atom" in images[-1].data or b"red" in images[-1].data


def test_an_index_stays_small_beside_limits(picking: tuple[Kernel, Emulator]) -> None:
    """The sizes of a check are no reason to compute places with 64 bits."""
    text = picking[0].text
    assert "const int " in text
    func = picking[0].func
    assert "const i64 " in emit_kernel(replace(func, sizes=(*func.sizes, "n")), "pick").text
