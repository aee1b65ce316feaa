"""Inputs for tests: small integers, so that sums are exact in any order."""

import numpy as np

from dlc.schedule.interpret import evaluate_size, numpy_dtype


def inputs(func, sizes, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for buffer in func.inputs:
        shape = tuple(evaluate_size(s, sizes) for s in buffer.type.shape)
        arrays[buffer.name] = rng.integers(1, 5, shape).astype(numpy_dtype(buffer.type.dtype))
    return arrays
