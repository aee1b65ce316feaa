"""What a launch asks for while those before it still run: weights, which no launch writes.

A launch that came early has nothing else to do until they are done, and weights are what it reads
once, from the slowest memory. They are asked into the second-level cache, all blocks together: that
takes no memory of a block and changes no result. What data gives the place of, as rows of an
embedding, is mostly never read, and is left alone.

Source: CUTLASS, example 63 ("hopper_gemm_with_weight_prefetch"), in idea.
"""

from __future__ import annotations

from dlc.schedule.loop import Buffer, Func, Invoke, exprs, walk
from dlc.te.expr import Const
from dlc.te.transform import loads

MOST_BYTES = 16 << 20  # of a launch: a third of the second-level cache of an H100, 50 MB


def fetched_ahead(func: Func, constants: frozenset[str]) -> tuple[Buffer, ...]:
    """Those of the inputs, among `constants`, that a launch asks for ahead."""
    scattered = {x.buffer for e in exprs(func.body) for x in loads(e) if any(map(loads, x.index))}
    for stmt in walk(func.body):
        if isinstance(stmt, Invoke):
            scattered |= {b for b, index in stmt.operands if any(map(loads, index))}
    found: list[Buffer] = []
    left = MOST_BYTES
    for buffer in func.inputs:
        size = buffer.type.elems * buffer.type.dtype.size_bytes
        if buffer.name not in constants - scattered or not isinstance(size, Const):
            continue
        if size.value <= left:
            left -= int(size.value)
            found.append(buffer)
    return tuple(found)
