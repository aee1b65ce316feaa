"""What a core can do at best: two loops that are timed on this machine.

A profile holds each kernel against them. Both run on one thread.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass

import numpy as np

from dlc.codegen.llvm.compile import compile_ir
from dlc.codegen.llvm.load import load
from dlc.core.target import Target

FMA_CHAINS = 12  # of dependent multiply-adds: more than latency times ports, fewer than registers
_STEPS = 100_000  # of the loop of multiply-adds
_ROUNDS = 12
_CACHES = 4  # times the second-level cache: what is read then comes from beyond it


@dataclass(frozen=True, slots=True)
class Peaks:
    """Rates of one core."""

    gflops: float  # of float32 multiply-adds, each two operations
    read_gbytes_per_s: float  # from beyond the second-level cache


def measure_peaks(target: Target) -> Peaks:
    """Time both loops; `target` must run on this machine.

    Raises:
        CodegenError: LLVM rejects the loops.
    """
    lanes = target.lanes(4)
    bytes_ = _CACHES * target.l2_bytes // (4 * lanes * FMA_CHAINS) * (4 * lanes * FMA_CHAINS)
    data = np.ones(bytes_ // 4, np.float32)
    code = compile_ir(fma_loop(lanes) + _read_loop(lanes), target)
    loaded = load(code, "fma_loop", "read_loop")
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    fma, read = kind(loaded["fma_loop"]), kind(loaded["read_loop"])
    out = np.zeros(lanes, np.float32)
    fma_ns = _best(lambda: fma(out.ctypes.data, _STEPS))
    read_ns = _best(lambda: read(data.ctypes.data, len(data)))
    return Peaks(2 * lanes * FMA_CHAINS * _STEPS / fma_ns, bytes_ / read_ns)


def _best(run: object) -> float:
    assert callable(run)
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - start)
    return float(min(times))


def _loop(name: str, kind: str, step: int, lines: list[str], last: list[str]) -> str:
    """A function whose loop keeps one vector for each chain, and stores their sum to `data`."""
    phis = [
        f"  %a{k} = phi {kind} [zeroinitializer, %entry], [%b{k}, %loop]" for k in range(FMA_CHAINS)
    ]
    return "\n".join(
        [
            f"define void @{name}(ptr %data, i64 %n) {{",
            "entry:",
            "  br label %loop",
            "loop:",
            "  %i = phi i64 [0, %entry], [%j, %loop]",
            *phis,
            *lines,
            f"  %j = add nuw nsw i64 %i, {step}",
            "  %more = icmp slt i64 %j, %n",
            "  br i1 %more, label %loop, label %exit",
            "exit:",
            *last,
            f"  store {kind} %s{FMA_CHAINS - 1}, ptr %data, align 4",
            "  ret void",
            "}",
            "",
        ]
    )


def _sum(kind: str) -> list[str]:
    first = [f"  %s0 = fadd {kind} %b0, zeroinitializer"]
    return first + [f"  %s{k} = fadd {kind} %s{k - 1}, %b{k}" for k in range(1, FMA_CHAINS)]


def fma_loop(lanes: int) -> str:
    """A module with a function of (data, n) that does n times `FMA_CHAINS` multiply-adds."""
    kind = f"<{lanes} x float>"
    name = f"@llvm.fma.v{lanes}f32"
    lines = [
        f"  %b{k} = call {kind} {name}({kind} %a{k}, {kind} %a{k}, {kind} %a{k})"
        for k in range(FMA_CHAINS)
    ]
    declare = f"declare {kind} {name}({kind}, {kind}, {kind})\n"
    return declare + _loop("fma_loop", kind, 1, lines, _sum(kind))


def _read_loop(lanes: int) -> str:
    kind = f"<{lanes} x float>"
    lines = []
    for k in range(FMA_CHAINS):
        lines += [
            f"  %i{k} = add nuw nsw i64 %i, {k * lanes}",
            f"  %p{k} = getelementptr float, ptr %data, i64 %i{k}",
            f"  %x{k} = load {kind}, ptr %p{k}, align 4",
            f"  %b{k} = fadd {kind} %a{k}, %x{k}",
        ]
    return _loop("read_loop", kind, FMA_CHAINS * lanes, lines, _sum(kind))
