"""Names in host programs."""

from __future__ import annotations

from dlc.graph.lower import lower_graph
from dlc.graph.text import parse_graph


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
