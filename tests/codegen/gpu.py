"""Runs functions scheduled for a GPU on the emulator, launch by launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlc.codegen.cuda.emit import Kernel, emit_kernel
from dlc.codegen.cuda.emulate import ORDERS, EmulationError, Emulator
from dlc.core.target import Gpu, Target
from dlc.schedule.fetch_ahead import fetched_ahead
from dlc.schedule.gpu import split_launches
from dlc.schedule.interpret import evaluate_size, numpy_dtype, run_func
from dlc.schedule.loop import Buffer, Func
from dlc.schedule.pipeline import optimize
from dlc.schedule.primitive import Step
from dlc.schedule.verify_gpu import verify_gpu

GPU = Target(backend="cuda", gpu=Gpu())


@dataclass(frozen=True)
class Scheduled:
    """A lowered function, and the kernels it became."""

    func: Func
    kernels: tuple[Kernel, ...]
    scratch: tuple[Buffer, ...]
    arrivals: tuple[Buffer, ...] = ()


def schedule(
    func: Func,
    symbol: str,
    steps: Sequence[Step] | None = None,
    constants: frozenset[str] = frozenset(),
) -> Scheduled:
    """Schedule a lowered function for a GPU, verify and print it; some inputs are constants."""
    assert GPU.gpu is not None
    found = split_launches(optimize(func, GPU, steps))
    for launch in found.funcs:
        verify_gpu(launch, GPU.gpu, when="in the test")
    kernels = tuple(
        emit_kernel(f, f"{symbol}_{n}", fetched_ahead(f, constants))
        for n, f in enumerate(found.funcs)
    )
    return Scheduled(func, kernels, found.scratch, found.arrivals)


def emulate(
    emulator: Emulator,
    scheduled: Scheduled,
    arrays: Mapping[str, Any],
    sizes: Mapping[str, int],
    order: str = "forward",
) -> dict[str, Any]:
    """The outputs of a function; what is not stored is NaN or a strange number."""
    func = scheduled.func
    shared = dict(func.in_place)
    buffers = {name: np.array(a, order="C") for name, a in arrays.items()}
    for buffer in (*func.outputs, *scheduled.scratch):
        if buffer.name in shared:
            buffers[buffer.name] = buffers[shared[buffer.name]]
        else:
            buffers[buffer.name] = _undefined(buffer, sizes)
    for buffer in scheduled.arrivals:
        buffers[buffer.name] = np.zeros(buffer.type.static_shape, np.uint32)
    for kernel in scheduled.kernels:
        emulator.run(kernel, buffers, sizes, order)
    if any(buffers[b.name].any() for b in scheduled.arrivals):
        raise EmulationError("the counts of blocks do not end with 0")
    return {b.name: buffers[b.name] for b in func.outputs}


def _undefined(buffer: Buffer, sizes: Mapping[str, int]) -> Any:
    shape = tuple(evaluate_size(s, sizes) for s in buffer.type.shape)
    array = np.empty(shape, numpy_dtype(buffer.type.dtype))
    array.reshape(-1).view(np.uint8)[:] = 0xFF if buffer.type.dtype.is_float else 0x5A
    return array


def check_emulated(
    scheduled: Scheduled,
    arrays: Mapping[str, Any],
    sizes: Mapping[str, int],
    *,
    emulator: Emulator | None = None,
    rtol: float = 0.0,
    orders: Sequence[str] = tuple(ORDERS),
) -> None:
    """The emulated kernels give what the interpreter gives for the lowered function."""
    emulator = emulator or Emulator(scheduled.kernels)
    with np.errstate(all="ignore"):
        want = run_func(scheduled.func, sizes, arrays)
    for order in orders:
        got = emulate(emulator, scheduled, arrays, sizes, order)
        for name, array in want.items():
            if rtol and array.dtype.kind in "fV":
                a, b = got[name].astype(np.float64), array.astype(np.float64)
                np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=f"{name}, {order}")
            else:
                np.testing.assert_array_equal(got[name], array, err_msg=f"{name}, {order}")
