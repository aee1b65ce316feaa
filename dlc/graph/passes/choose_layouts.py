"""Compute convolutions and what surrounds them on channel-blocked tensors.

Before:
    def main(x: f32[1, 16, 7, 9], r: f32[1, 24, 5, 7]):
        w: f32[24, 16, 3, 3] = const()
        a: f32[1, 24, 5, 7] = conv(x, w)
        b: f32[1, 24, 5, 7] = relu(a)
        y: f32[1, 24, 5, 7] = add(b, r)
        return y

After:
    def main(x: f32[1, 16, 7, 9], r: f32[1, 24, 5, 7]):
        w_blocked: f32[3, 2, 3, 3, 8, 8] = const()
        x_blocked: f32[1, 2, 7, 9, 8] = pack_channels(x, block=8)
        a_blocked: f32[1, 3, 5, 7, 8] = conv_blocked(x_blocked, w_blocked)
        b_blocked: f32[1, 3, 5, 7, 8] = relu(a_blocked)
        r_blocked: f32[1, 3, 5, 7, 8] = pack_channels(r, block=8)
        y_blocked: f32[1, 3, 5, 7, 8] = add(b_blocked, r_blocked)
        y: f32[1, 24, 5, 7] = unpack_channels(y_blocked, channels=24)
        return y

Position: after the rules, which fold scales into weights and pads into convolutions; before
share_halos, which moves the pads made here to where tensors are made, and before fuse_groups.

The graph is read once, in order. A convolution asks for a blocked operand; every other operator
that can works on blocked tensors as soon as an operand is one, so that transforms remain only
where the model itself leaves images: at its inputs, its results and at reshapes.

Lanes that hold no channel are kept harmless: the pass knows what they hold, weights for them are
zero, and an operator that would make them infinite or NaN (0 / 0) works on the planar tensor.

Source: Liu et al., "Optimizing CNN Model Inference on CPUs" (NeoCPU), USENIX ATC 2019, section 3.2.
"""

from __future__ import annotations

from collections.abc import Callable

from dlc.graph.blocking import Blocking
from dlc.graph.blocking_border import at_border, stays_blocked
from dlc.graph.blocking_conv import block_conv
from dlc.graph.blocking_conv_transpose import block_conv_transpose
from dlc.graph.blocking_ops import (
    block_channel_shuffle,
    block_concat,
    block_elementwise,
    block_instance_norm,
    block_pad,
    block_pool,
    block_reduce,
    block_resize,
    block_slice,
)
from dlc.graph.graph import Graph, Node
from dlc.graph.op import Fuse, Op
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.layout import ChannelShuffle
from dlc.graph.ops.norm import InstanceNorm
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.shape import Concat, Pad, Slice
from dlc.graph.pass_ import PassContext, graph_pass

Blocker = Callable[[Blocking, Node], bool]
"""Writes a node in blocked form and returns True, or writes nothing and returns False."""

BLOCKERS: dict[type[Op], Blocker] = {
    Conv: block_conv,
    ConvTranspose: block_conv_transpose,
    InstanceNorm: block_instance_norm,
    MaxPool: block_pool,
    AveragePool: block_pool,
    Reduce: block_reduce,
    Concat: block_concat,
    Slice: block_slice,
    Pad: block_pad,
    Resize: block_resize,
    ChannelShuffle: block_channel_shuffle,
}


@graph_pass(after=("apply_rules",), bodies=True)
def choose_layouts(graph: Graph, context: PassContext) -> Graph:
    """Rewrite convolutions and their surroundings to blocked tensors."""
    if not any(isinstance(n.op, Conv | ConvTranspose) for n in graph.nodes):
        return graph
    blocking = Blocking(graph, context)
    for node in graph.nodes:
        blocking.at(node)
        is_border = context.is_asked and at_border(blocking, node)
        take_back = blocking.remember() if is_border else None
        if not _blocker(node)(blocking, node):
            blocking.keep(node)
        elif take_back is not None and not stays_blocked(blocking, node):
            take_back()
            blocking.keep(node)
    return blocking.finish()


def _blocker(node: Node) -> Blocker:
    if node.op.fuse is Fuse.ELEMENTWISE:
        return block_elementwise
    return BLOCKERS.get(type(node.op), _stay_planar)


def _stay_planar(blocking: Blocking, node: Node) -> bool:
    return False
