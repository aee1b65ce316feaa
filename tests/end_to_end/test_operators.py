"""Every operator as machine code, scheduled and compiled for this machine, gives its reference.

Inputs end where memory ends, so a read beyond them is a crash.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.graph.arrays import round_to
from dlc.graph.evaluate import evaluate
from dlc.graph.graph import Graph, Value, call
from dlc.graph.lower import lower_group
from dlc.schedule.pipeline import optimize
from tests.codegen.jit import NATIVE, Kernel, array_shape
from tests.graph.op_cases import CASES

pytestmark = pytest.mark.slow
RTOL = 3e-6
"""Sums in another order, products contracted into them, and functions right to a few units."""


def graph_of(case) -> Graph:
    inputs = tuple(Value(f"in{i}", t) for i, t in enumerate(case.types))
    found = case.op.infer(*case.types)
    names = tuple(f"y{i}" for i in range(len(found))) if isinstance(found, tuple) else ("y0",)
    node = call(case.op, *inputs, name=names)
    return Graph("main", ("n",), inputs, (node,), node.outputs)


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{i}-{c}") for i, c in enumerate(CASES)])
def test_machine_code_is_the_reference(case):
    graph = graph_of(case)
    func = lower_group(graph, "kernel")
    kernel = Kernel(replace(optimize(func, NATIVE), name="kernel"))
    for sizes in case.sizes:
        arrays = {v.name: a for v, a in zip(graph.inputs, case.arrays(sizes), strict=True)}
        used = {k: v for k, v in sizes.items() if k in kernel.func.sizes}
        # `collapse` gives the same memory other shapes.
        given = {b.name: arrays[b.name].reshape(array_shape(b, used)) for b in kernel.func.inputs}
        found = kernel(used, given)
        wanted = evaluate(graph, arrays, sizes)
        for value, actual in zip(graph.outputs, found.values(), strict=True):
            expected = round_to(wanted[value.name], value.type.dtype)
            actual = actual.reshape(expected.shape)
            if actual.dtype.kind != "f":
                if value.type.dtype.is_float:  # NumPy knows no NaN of types that are not its own
                    actual, expected = actual.astype(np.float32), expected.astype(np.float32)
                np.testing.assert_array_equal(actual, expected)
                continue
            rtol = max(case.rtol, RTOL if actual.dtype.itemsize > 2 else 2e-3)
            scale = np.max(np.abs(expected[np.isfinite(expected)]), initial=1e-3)
            np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * float(scale))
