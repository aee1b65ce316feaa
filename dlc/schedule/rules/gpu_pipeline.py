"""How chunks of factors come to shared memory: beside what the threads do, some chunks ahead.

A thread copies neighbours in memory, as many as fill 16 bytes, where the chunk has them side by
side; so lines of shared memory begin at multiples of 16 bytes. What is rounded or turned on its way
goes through registers, as any store.

Source: CUTLASS documentation, "Efficient GEMM in CUDA", section "Software pipelining"; PTX ISA 9.0,
"cp.async".
"""

from __future__ import annotations

from collections.abc import Mapping

from dlc.core.errors import ScheduleError
from dlc.core.target import Target
from dlc.schedule.gpu import copied
from dlc.schedule.instruction import ASYNC_COPIES, COPY_BYTES
from dlc.schedule.loop import Alloc, Scope, allocs
from dlc.schedule.trace import Trace
from dlc.schedule.verify_copies import misaligned_copies
from dlc.te.expr import Expr, Load
from dlc.te.simplify import surely_divides
from dlc.te.types import const_size

STAGES = 4  # at most: three chunks on their way hide the latency of memory
ROOM = 96 * 1024  # bytes of shared memory for all stages: of H100 a processor then has two blocks


def copy_in_lines(trace: Trace, name: str, target: Target) -> list[str]:
    """Let copies bring a buffer where they can; the loops over what is left to do."""
    names = trace.stage(name).names
    for count in _counts(trace, name, target):
        trial = trace.copy()
        outer, lane = f"{names[-1]}_o", f"{names[-1]}_v"
        dtype = trial.stage(name).store.value.dtype
        try:
            trial.do("split", names[-1], count, (outer, lane))
            trial.do("tensorize", lane, f"copy_async_{dtype}_{count}")
        except ScheduleError:  # neighbours there are none where they come from
            continue
        if any(misaligned_copies(trial.func)):
            continue
        trace.take(trial)
        return [*names[:-1], outer]
    return names


def _counts(trace: Trace, name: str, target: Target) -> list[int]:
    """How many neighbours one copy may bring, the most first; none where it is no plain copy."""
    assert target.gpu is not None, "shared memory is a GPU's"
    nest = trace.stage(name)
    value = nest.value
    source = next((b for b in trace.func.inputs if _is_from(value, b.name)), None)
    if source is None or not nest.loops:
        return []
    width = source.type.dtype.size_bytes
    ends = [source.type.shape[-1:], (nest.loops[-1].extent,), _shape(trace, name)[-1:]]
    found = [size // width for size in COPY_BYTES if size <= max(width, target.gpu.copy_bytes)]
    named = [n for n in found if f"copy_async_{source.type.dtype}_{n}" in ASYNC_COPIES]
    return [n for n in named if all(surely_divides(n, e) for end in ends for e in end)]


def _is_from(value: Expr, buffer: str) -> bool:
    return isinstance(value, Load) and value.buffer == buffer


def _shape(trace: Trace, name: str) -> tuple[Expr, ...]:
    return allocs(trace.func.body)[name].buffer.type.shape


def pipeline_chunks(
    trace: Trace, chunk: str, knobs: Mapping[str, int], room: int | None = None
) -> None:
    """Fill shared memory some chunks ahead, where copies do it and there is room for a second.

    `room` are the bytes that all stages may have; without it there is always a second.
    """
    if copied(trace.loop(chunk).body):
        most = trace.constant(chunk) or 1
        trace.do(
            "pipeline", chunk, min(most, knobs.get("stages", 0) or _stages(trace, chunk, room))
        )


def _stages(trace: Trace, chunk: str, room: int | None) -> int:
    shared = [a for a in allocs(trace.loop(chunk).body).values() if a.scope is Scope.SHARED]
    size = sum(_bytes(a) for a in shared)
    least, room = (2, ROOM) if room is None else (1, room)
    return max(least, min(STAGES, room // size))


def _bytes(alloc: Alloc) -> int:
    return const_size(alloc.buffer.type.elems) * alloc.buffer.type.dtype.size_bytes
