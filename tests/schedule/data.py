"""Inputs for tests: small integers, so that sums are exact in any order."""

import textwrap

import numpy as np

from dlc.schedule.interpret import evaluate_size, numpy_dtype, run_func
from dlc.schedule.text import parse_func

FULL = """@in_place(B="A")
def conv(n: size, A: f32[n, 8], W: f32[()], *, B: f32[n, 8]):
    for i in parallel((n + 3) // 4):
        acc = alloc(f32[4, 8], "register")
        for ii in unroll(4):
            for j in vectorize(8):
                acc[ii, j] = 0.0
        for k in range(8, prefetch=2):
            for ii_1 in unroll(4):
                for j_1 in vectorize(8):
                    if i * 4 + ii_1 < n:
                        acc[ii_1, j_1] += A[i * 4 + ii_1, k] * W[()]
        for ii_2 in range(4):
            for j_2 in range(8):
                if i * 4 + ii_2 < n:
                    B[i * 4 + ii_2, j_2] = max(acc[ii_2, j_2], -inf)
"""


def parse(text):
    return parse_func(textwrap.dedent(text))


def inputs(func, sizes, seed=0, low=1, high=5):
    rng = np.random.default_rng(seed)
    arrays = {}
    for buffer in func.inputs:
        shape = tuple(evaluate_size(s, sizes) for s in buffer.type.shape)
        arrays[buffer.name] = rng.integers(low, high, shape).astype(numpy_dtype(buffer.type.dtype))
    return arrays


def run_alike(func, plain, sizes, arrays, seed=0):
    """The outputs of a function on the arrays, and in the shapes, of a plain one.

    `collapse` gives the same memory other shapes.
    """
    shapes = {b.name: [evaluate_size(n, sizes) for n in b.type.shape] for b in plain.outputs}
    given = {
        b.name: arrays[b.name].reshape([evaluate_size(n, sizes) for n in b.type.shape])
        for b in func.inputs
    }
    return {
        name: array.reshape(shapes[name])
        for name, array in run_func(func, sizes, given, seed).items()
    }


def assert_same(func, other, values=(0, 1, 2, 5, 7, 13), *, seed=0):
    """Both functions give one result for all values of the sizes."""
    for value in values if func.sizes else (0,):
        sizes = dict.fromkeys(func.sizes, value)
        arrays = inputs(func, sizes, seed)
        want = run_func(func, sizes, arrays)
        got = run_alike(other, func, sizes, arrays, seed + 1)
        for name in want:
            np.testing.assert_array_equal(got[name], want[name], err_msg=f"{sizes} {name}")
