"""Keep matrices that meet few rows in fewer bytes, which is what such products wait for.

Before:
    def main(x: f32[1, 256]):
        w: f32[16, 256, 16] = const()
        y: f32[1, 256] = matmul_packed(x, w, n=256)
        return y

After:
    def main(x: f32[1, 256]):
        w_narrow: bf16[16, 128, 16, 2] = const()
        y: f32[1, 256] = matmul_pairs(x, w_narrow, n=256)
        return y

Position: after use_matrix_engine, which takes what has enough rows.

Weights of quantized models are exact in a byte, or in bf16 where their zero is not in the middle,
and those of models of 16-bit floats in these; no precision changes that. "medium" rounds all others
to bf16, as it does on a matrix engine. Of a single row, vectors that multiply pairs of bf16 add two
products in the time in which two weights are widened, where that is all the use of pairs, too
(`Target.slow_pairs`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from dlc.core.types import DType
from dlc.graph.arrays import NUMPY_DTYPES, round_to
from dlc.graph.chosen import choose_again, chosen
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Value
from dlc.graph.integers import bf16_exact
from dlc.graph.op import Array
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.pairs import ROUNDED, MatMulPairs, pack_pairs
from dlc.graph.ops.planes import split_planes
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.schedule.rules.operands import is_few
from dlc.te.simplify import surely_divides
from dlc.te.types import const_size, is_const

PANEL_RANK = 3  # of one matrix: panel, summand, column


@graph_pass(after=("pack_matmul_weights", "use_matrix_engine"), bodies=True)
def narrow_weights(graph: Graph, context: PassContext) -> Graph:
    """Replace packed matrices by the same in bytes or bf16."""
    if context.target.gpu is not None:
        return graph
    editor = GraphEditor(graph)
    rounds = context.rounds_to_bf16
    small: dict[str, tuple[Array, DType] | None] = {}
    made: dict[tuple[str, bool], Value] = {}
    for node in graph.nodes:
        if not isinstance(node.op, MatMulPacked):
            continue
        (x, right), choice = node.inputs, chosen(editor, node.inputs[1])
        w = right if choice is None else choice.inputs[0]
        array = editor.array(w)
        if array is None or not _waits(x, w, context):
            continue
        if w.name not in small:
            small[w.name] = _narrow(array, rounds=rounds)
        if (found := small[w.name]) is None:
            continue
        paired = rounds and choice is None and found[1] is DType.BF16 and _fills_pairs(x, w)
        if (w.name, paired) not in made:
            packed = pack_pairs(array) if paired else found[0]
            made[w.name, paired] = editor.constant(packed, found[1], f"{w.name}_narrow")
        op = MatMulPairs(n=node.op.n) if paired else node.op
        inputs = x, choose_again(editor, choice, made[w.name, paired])
        editor.update(replace(node, op=op, inputs=inputs))
        editor.discard(node.inputs)
    return editor.finish()


def _waits(x: Value, w: Value, context: PassContext) -> bool:
    """Whether one row meets a matrix that is not in the first cache, or few one in no cache.

    Of a stack each matrix has rows of its own, and any of them may be next.
    """
    if not x.type.dtype is w.type.dtype is DType.F32:
        return False
    *outer, _ = x.type.shape[w.type.rank - 3 :]
    if not w.type.is_static or not is_few(outer):
        return False
    cache = context.target.l1_bytes if _is_one(x, w) else context.target.l2_bytes
    return prod(map(const_size, w.type.shape)) * DType.F32.size_bytes > cache


def _is_one(x: Value, w: Value) -> bool:
    """Whether each matrix meets one row."""
    return all(is_const(size, 1) for size in x.type.shape[w.type.rank - 3 : -1])


def _fills_pairs(x: Value, w: Value) -> bool:
    """Whether a matrix meets one row, which may be rounded by whole vectors."""
    is_plain = w.type.rank == PANEL_RANK and x.type.rank > 1
    return is_plain and _is_one(x, w) and surely_divides(ROUNDED, x.type.shape[-1])


def _narrow(array: Array, *, rounds: bool) -> tuple[Array, DType] | None:
    """The elements in fewer bytes, and the type; None where that would change them."""
    if bf16_exact(array):
        with np.errstate(invalid="ignore"):  # what is not finite is not equal, either
            small = array.astype(np.int8)
        if (small == array).all() and not np.signbit(array[small == 0]).any():
            return small, DType.I8
    elif (half := _as_f16(array)) is not None:
        return half, DType.F16
    elif not rounds:
        return None
    return split_planes(array, 1)[0].view(NUMPY_DTYPES[DType.BF16]), DType.BF16


def _as_f16(array: Array) -> Array | None:
    """The same numbers in f16, as those of a model of 16-bit floats are; None for others."""
    half = round_to(array, DType.F16)
    return half if (half == array).all() else None
