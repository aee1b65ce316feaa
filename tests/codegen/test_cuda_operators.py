"""Every operator on a GPU: its default schedule, printed, emulated, equal to the interpreter."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dlc.graph.ops  # noqa: F401  # declares the operators
from benchmarks.ulp import ulps
from dlc.codegen.cuda.emulate import FOLDER, Emulator
from dlc.codegen.cuda.expr import MEMORY_TYPES
from dlc.core.types import DType
from dlc.graph.ops.activation import Sigmoid
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


KNOWN = [n for n, c in enumerate(CASES) if is_known(c)]
FIRST = list({CASES[n].op.name: n for n in reversed(KNOWN)}.values())
FOR_CPUS = {"conv_pairs", "matmul_pairs"}  # made for AVX512_BF16 alone: no GPU's program has them
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
        for sizes in case.sizes:
            arrays = {f"in{i}": np.array(a) for i, a in enumerate(case.arrays(sizes))}
            try:
                check_emulated(one, arrays, sizes, emulator=emulator, rtol=4e-3 if narrow else 2e-6)
            except Exception as error:
                raise AssertionError(f"{case} of {dict(sizes)}: {error}") from error


def test_operators_are_right_on_the_emulator() -> None:
    check(FIRST)


def test_a_sigmoid_is_rounded_little_and_has_denormals() -> None:
    x = np.linspace(-4.17, -4.15, 9001).astype(np.float32)
    x[-3:] = -95.0, np.inf, -np.inf
    one = schedule(lowered(case(Sigmoid(), "f32[9001]")), "sigmoid")
    (found,) = emulate(Emulator(one.kernels), one, {"in0": x}, {}, "forward").values()
    exact = 1.0 / (1.0 + np.exp(-x.astype(np.float64)))
    assert ulps(found, exact).max() < 1.5 + 0.1  # of this machine's expf, which is half an ULP off


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_case_is_right_on_the_emulator(part: int) -> None:
    check(OTHERS[part::4])


@pytest.mark.slow
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
