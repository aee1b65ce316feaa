"""Names in host programs, and concatenations of many parts."""

from __future__ import annotations

from dlc.core.types import DType
from dlc.graph.lower import lower_graph
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.shape import Concat
from dlc.graph.text import parse_graph
from dlc.te.expr import Select
from dlc.te.tensor import placeholder
from dlc.te.types import TensorType


def test_kernels_have_other_names_than_buffers_and_sizes():
    graph = parse_graph("""\
def main(other: size, x: f32[other], y: f32[other]):
    def group(other: size, x: f32[other], y: f32[other]):
        c: f32[other] = add(x, y)
        return c
    def other(other: size, x: f32[other], y: f32[other]):
        c: f32[other] = sub(x, y)
        return c
    group: f32[other] = group(x, y)
    group_kernel: f32[other] = other(x, y)
    return group, group_kernel
""")
    program, _ = lower_graph(graph)
    assert [kernel.name for kernel in program.kernels] == ["group_kernel_kernel", "other_kernel"]


def test_of_many_parts_the_expression_stays_low():
    parts = [placeholder(f"x{i}", TensorType(as_sizes((1,)), DType.F32)) for i in range(1000)]
    level, depth = [Concat(axis=0).compute(*parts).body], 0
    while level := [e for part in level for e in (part.then, part.other) if isinstance(e, Select)]:
        depth += 1
    assert depth < 26  # 1000 in halves down to 16 at most, and these one by one
