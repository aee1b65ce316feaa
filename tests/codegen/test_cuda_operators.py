"""Every operator on a GPU: its default schedule, printed, emulated, equal to the interpreter."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlc.graph.ops  # noqa: F401  # declares the operators
from benchmarks.ulp import ulps
from dlc.codegen.cuda.emulate import FOLDER, Emulator
from dlc.codegen.cuda.expr import MEMORY_TYPES
from dlc.core.types import DType
from dlc.graph.ops.activation import Gelu, GeluShort, Sigmoid, exact_sigmoid
from dlc.graph.ops.elementwise import Erf
from dlc.graph.ops.fused import compose
from dlc.graph.ops.nest import NestOp
from dlc.schedule.lower import lower_tensors
from dlc.te.tensor import placeholder
from tests.codegen.gpu import Scheduled, check_emulated, emulate, schedule
from tests.graph.op_case import Case, case
from tests.graph.op_cases import CASES
from tests.graph.test_ops import graph_of

NVCC = shutil.which("nvcc")
ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")


def is_known(case: Case) -> bool:
    """Whether a GPU runs it: steps in order and 4- and 8-bit floats stay on the host."""
    if isinstance(case.op, NestOp):
        return False
    results = case.op.infer(*case.types)
    found = results if isinstance(results, tuple) else (results,)
    return all(t.dtype in MEMORY_TYPES for t in (*case.types, *found))


# Made for AMX alone: no GPU's program has them, and no GPU's rule knows sums that nobody reads.
FOR_TILES = {
    "conv_byte_tiles", "conv_planar_byte_tiles", "conv_planar_planes", "matmul_byte_tiles",
}  # fmt: skip
KNOWN = [n for n, c in enumerate(CASES) if is_known(c) and c.op.name not in FOR_TILES]
FIRST = list({CASES[n].op.name: n for n in reversed(KNOWN)}.values())
# Made for AVX512_BF16 and VNNI alone: no GPU's program has them.
FOR_CPUS = {
    "conv_pairs", "conv_planar_pairs", "matmul_pairs", "matmul_pairs_computed",
    "conv_bytes", "conv_winograd_bytes", "matmul_bytes",
}  # fmt: skip
OTHERS = [n for n in KNOWN if n not in FIRST]


def scheduled(numbers: list[int]) -> dict[int, Scheduled]:
    """The kernels of some of the cases."""
    return {n: schedule(lowered(CASES[n]), f"case{n}") for n in numbers}


def lowered(case: Case):
    graph = graph_of(case)
    inputs = tuple(placeholder(f"in{i}", t) for i, t in enumerate(case.types))
    return lower_tensors("kernel", graph.sizes, inputs, compose(graph, inputs))


def check(numbers: list[int]) -> None:
    found = scheduled(numbers)
    emulator = Emulator([k for s in found.values() for k in s.kernels])
    for number, one in found.items():
        case = CASES[number]
        # The emulator computes with this machine's libm, and 16-bit floats as f32.
        narrow = any(t.dtype in (DType.F16, DType.BF16) for t in case.types)
        rtol = 4e-3 if narrow else 2e-6
        if isinstance(case.op, GeluShort):  # by what it promises: 19 bits, times |x| below 2
            rtol = max(rtol, 2.0 * 2.0**-19)
        for sizes in case.sizes:
            arrays = {f"in{i}": np.array(a) for i, a in enumerate(case.arrays(sizes))}
            try:
                check_emulated(one, arrays, sizes, emulator=emulator, rtol=rtol)
            except Exception as error:
                raise AssertionError(f"{case} of {dict(sizes)}: {error}") from error


def test_operators_are_right_on_the_emulator() -> None:
    check(FIRST)


# By function: where it is worst, the aim of docs/accuracy.md, and its values for these arguments.
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, -95.0], np.float32)
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "sigmoid": (
        Sigmoid(), (-5, 0.01), 2, exact_sigmoid,
        [0.5, 0.5, 1, 0, np.nan, 0.5, 0.5, exact_sigmoid(np.float64(-95))],
    ),
    "gelu": (Gelu(), (-6, 6), 4, Gelu().exact, [0, 0, np.inf, np.nan, np.nan, 5e-41, -5e-41, 0]),
    "erf": (Erf(), (-4, 4), 1.5, Erf().exact, [0, 0, 1, -1, np.nan, 1.128e-40, -1.128e-40, -1]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_our_own_meet_their_aims(name: str) -> None:
    op, (low, high), aim, exact, values = FUNCTIONS[name]
    x = np.concatenate([SPECIAL, np.linspace(low, high, 60000).astype(np.float32)])
    one = schedule(lowered(case(op, f"f32[{x.size}]")), name)
    emulator = Emulator(one.kernels, optimize=True)
    (found,) = emulate(emulator, one, {"in0": x}, {}, "forward").values()
    ordinary = x[SPECIAL.size :]
    assert ulps(found[SPECIAL.size :], exact(ordinary.astype(np.float64))).max() < aim
    np.testing.assert_allclose(found[: SPECIAL.size], values, rtol=1e-3, atol=2e-45)


def test_the_short_probability_is_right_to_19_bits() -> None:
    x = np.concatenate([SPECIAL, np.linspace(-8, 8, 30000).astype(np.float32)])
    one = schedule(lowered(case(GeluShort(), f"f32[{x.size}]")), "short")
    emulator = Emulator(one.kernels, optimize=True)
    (found,) = emulate(emulator, one, {"in0": x}, {}, "forward").values()
    ordinary = x[SPECIAL.size :].astype(np.float64)
    off = found[SPECIAL.size :] - Gelu().exact(ordinary)
    assert np.abs(off / np.maximum(np.abs(ordinary), 1)).max() < 2.0**-18.9
    assert np.isnan(found[4])


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4))
def test_every_case_is_right_on_the_emulator(part: int) -> None:
    check(OTHERS[part::4])


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
def test_every_kernel_compiles_without_spills(tmp_path: Path) -> None:
    found = scheduled([n for n in FIRST if CASES[n].op.name not in FOR_CPUS])
    kernels = [k for s in found.values() for k in s.kernels]
    source = tmp_path / "all.cu"
    source.write_text('#include "seam.cuh"\n' + "\n".join(k.text for k in kernels))
    for arch in ARCHS:
        done = subprocess.run(
            [str(NVCC), "-cubin", f"-arch={arch}", "-Werror=all-warnings", "-diag-suppress=177",
             f"-I{FOLDER}", "-Xptxas=-v", "-o", str(tmp_path / "all.cubin"), str(source)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        lines = [line for line in done.stderr.splitlines() if "spill" in line]
        assert len(lines) >= len(kernels)
        spilling = [line for line in lines if " 0 bytes spill stores, 0 bytes spill" not in line]
        assert not spilling, spilling[0]
