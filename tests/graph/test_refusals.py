"""What `infer` refuses: a test for each reason, and none without a test."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dlc.graph.op as op_module
from dlc.core.errors import ShapeError
from dlc.core.types import DType
from dlc.graph.op import Op
from dlc.graph.ops import activation as act
from dlc.graph.ops import binary as bin_
from dlc.graph.ops import (
    bits,
    cache,
    channels,
    checked_indices,
    columns,
    conv,
    conv_blocked,
    elementwise,
    from_sizes,
    gather,
    layout,
    matmul,
    narrow,
    norm,
    norm_blocked,
    planes_conv,
    planes_matmul,
    planes_pair,
    planes_planar,
    pool,
    quotient,
    random,
    resize,
    roi,
    sample,
    scatter,
    selection,
    shape,
    sort,
    text,
    trigonometry,
    unpool,
    winograd,
)
from dlc.graph.ops import reduce as red
from dlc.te.expr import ONE, Var
from dlc.te.text import parse_type

N = Var("n")
FOLDER = Path(op_module.__file__).parent / "ops"
WITH_BODIES = {
    "bind_sizes.py",
    "control.py",
    "fused.py",
    "scan.py",
}  # test_bind_sizes.py, test_bodies.py

COL2IM = columns.Col2Im(
    image=(3, 3), kernel=(2, 2), stride=(1, 1), pads=(0, 0, 0, 0), dilation=(1, 1)
)
UNPOOL = unpool.MaxUnpool(kernel=(2, 2), stride=(2, 2), pads=(0, 0, 0, 0), image=(6, 6))

REFUSED = [
    (act.Relu(), ["bool[3]"], "bool are not accepted"),
    (act.Sigmoid(), ["i32[3]"], "i32 are not accepted"),
    (act.Gelu(approximate="sin"), ["f32[3]"], "no approximation 'sin'"),
    (bin_.Add(), ["f32[3]", "f64[3]"], "differ in their element type"),
    (bin_.Add(), ["f32[3]", "f32[2]"], "sizes 2 and 3 do not broadcast|sizes 3 and 2"),
    (bin_.Add(), ["f32[n]", "f32[n + 1]"], "do not broadcast"),
    (bin_.And(), ["i32[3]", "i32[3]"], "i32 are not accepted"),
    (bin_.BitShift(direction="UP"), ["u8[3]", "u8[3]"], "no direction 'UP'"),
    (bin_.Where(), ["i32[3]", "f32[3]", "f32[3]"], "condition is not bool"),
    (bin_.Where(), ["bool[3]", "f32[3]", "i32[3]"], "differ in their element type"),
    (bin_.PRelu(), ["f32[3]", "f32[2, 3]"], "slope is larger"),
    (bin_.PRelu(), ["f32[1, 3]", "f32[2, 3]"], "slope is larger"),
    (conv.Conv(), ["f32[1, 2, 5, 5]", "f64[3, 2, 3, 3]"], "two operands of one type"),
    (conv.Conv(), ["f32[1, 2, 5, 5]", "f32[3, 2, 3]"], "two operands of one type"),
    (conv.Conv(), ["f32[1, 2]", "f32[3, 2]"], "3 or more dimensions"),
    (conv.Conv(stride=(1,)), ["f32[1, 2, 5, 5]", "f32[3, 2, 3, 3]"], "for 2 spatial"),
    (conv.Conv(pads=(1, 1)), ["f32[1, 2, 5, 5]", "f32[3, 2, 3, 3]"], "for 2 spatial"),
    (conv.Conv(stride=(0, 1)), ["f32[1, 2, 5, 5]", "f32[3, 2, 3, 3]"], "below 1"),
    (conv.Conv(pads=(0, -1, 0, 0)), ["f32[1, 2, 5, 5]", "f32[3, 2, 3, 3]"], "below 0"),
    (conv.Conv(), ["f32[1, 2, 5, 5]", "f32[3, 1, 3, 3]"], "do not fit 1 groups"),
    (conv.Conv(groups=2), ["f32[1, 2, 5, 5]", "f32[3, 1, 3, 3]"], "do not fit 2 groups"),
    (conv.Conv(groups=0), ["f32[1, 2, 5, 5]", "f32[3, 1, 3, 3]"], "do not fit 0 groups"),
    (conv.Conv(), ["f32[n, 2, 5, 1]", "f32[3, 2, 3, 3]"], "kernel is larger"),
    (conv.ConvTranspose(), ["i8[1, 2, 5, 5]", "i8[2, 1, 3, 3]"], "two float operands"),
    (conv.ConvTranspose(), ["f32[1, 2, 5, 5]", "f32[3, 1, 3, 3]"], "do not fit 1 groups"),
    (conv.ConvTranspose(groups=2), ["f32[1, 3, 5, 5]", "f32[3, 1, 3, 3]"], "fit 2 groups"),
    (conv_blocked.ConvBlocked(), ["f32[1, 2, 5, 5, 4]", "f32[3, 2, 3, 3, 4]"], "blocked operands"),
    (conv_blocked.ConvBlocked(), ["f32[1, 2, 5, 5, 4]", "f32[3, 2, 3, 3, 2, 4]"], "channel blocks"),
    (conv_blocked.ConvBlocked(), ["f32[1, 2, 5, 5, 4]", "f32[3, 1, 3, 3, 4, 4]"], "channel blocks"),
    (conv_blocked.ConvBlocked(groups=2), ["f32[1, 2, 5, 5, 4]", "f32[3, 1, 3, 3, 4, 4]"],
     "channel blocks"),
    (conv_blocked.PlanarConv(), ["f32[1, 2, 5, 5]", "f32[3, 2, 3, 3]"], "blocked weights"),
    (conv_blocked.PlanarConv(), ["f32[1, 2, 5, 5]", "f32[3, 3, 3, 3, 4]"], "fit 3 of the weights"),
    (conv_blocked.DepthwiseBlocked(), ["f32[1, 2, 5, 5, 4]", "f32[2, 3, 3]"], "blocked operands"),
    (conv_blocked.DepthwiseBlocked(), ["f32[1, 2, 5, 5, 4]", "f32[3, 3, 3, 4]"], "differ in their"),
    (conv_blocked.DepthwiseBlocked(), ["f32[1, 2, 5, 5, 4]", "f32[2, 3, 3, 2]"], "differ in their"),
    (matmul.MatMul(), ["f32[2, 3]", "f64[3, 2]"], "two operands of one type"),
    (matmul.MatMul(), ["f32[()]", "f32[3]"], "1 or more dimensions"),
    (matmul.MatMul(), ["bool[3]", "bool[3]"], "two operands of one type"),
    (matmul.MatMul(), ["f32[2, 3]", "f32[2, 3]"], "inner sizes differ"),
    (matmul.MatMul(), ["f32[2, 3]", "f32[2]"], "inner sizes differ"),
    (matmul.MatMul(), ["f32[2, 2, 3]", "f32[3, 3, 2]"], "stacks of 2 and 3"),
    (matmul.MatMulPacked(n=4), ["f32[2, 3]", "f32[3, 4]"], "packed columns"),
    (matmul.MatMulPacked(n=4), ["f32[2, 3]", "f32[1, 2, 4]"], "inner sizes differ"),
    (matmul.MatMulPacked(n=5), ["f32[2, 3]", "f32[1, 3, 4]"], "less than 5 columns"),
    (matmul.Einsum(equation="ij->i"), ["f32[2, 3]", "f32[3]"], "does not fit the operands"),
    (matmul.Einsum(equation="...i->i"), ["f32[2, 3, 4, 5]"], "does not fit the operands"),
    (matmul.Einsum(equation="ii->i"), ["f32[2, 3]"], "'i' has two sizes"),
    (matmul.Einsum(equation="ij->k"), ["f32[2, 3]"], "'k' is no list"),
    (matmul.Einsum(equation="ij->ii"), ["f32[2, 3]"], "'ii' is no list"),
    (matmul.Einsum(equation="i,i->i"), ["f32[2]", "i32[2]"], "types do not fit"),
    (pool.MaxPool(kernel=(2, 2)), ["f32[2, 3, 4]"], "4 or more dimensions"),
    (pool.MaxPool(kernel=(6, 2)), ["f32[2, 3, 4, 4]"], "kernel is larger"),
    (pool.MaxPool(kernel=(2, 0)), ["f32[2, 3, 4, 4]"], "below 1"),
    (pool.MaxPool(kernel=(2, 2)), ["bool[2, 3, 4, 4]"], "not accepted"),
    (pool.AveragePool(kernel=(2, 2)), ["i32[2, 3, 4, 4]"], "not accepted"),
    (red.Reduce(kind="median", axes=(0,)), ["f32[2]"], "no reduction 'median'"),
    (red.Reduce(kind="sum", axes=(0, -1)), ["f32[2]"], "named twice"),
    (red.Reduce(kind="sum", axes=(1,)), ["f32[2]"], "no axis 1"),
    (red.Reduce(kind="mean", axes=(0,)), ["i32[2]"], "not accepted"),
    (red.ArgMax(axis=-2), ["f32[2]"], "no axis -2"),
    (red.CumSum(axis=2), ["f32[2]"], "no axis 2"),
    (norm.InstanceNorm(), ["f32[2]", "f32[2]", "f32[2]"], "2 or more dimensions"),
    (norm.InstanceNorm(), ["f32[2, 3, 4]", "f32[3]", "f32[4]"], "needs 3 numbers"),
    (norm.InstanceNorm(), ["f32[2, 3, 4]", "f32[3, 1]", "f32[3]"], "needs 3 numbers"),
    (norm_blocked.InstanceNormBlocked(), ["f32[2, 3, 4, 4]", "f32[3, 4]", "f32[12]"],
     "a scale and a bias of blocks"),
    (norm_blocked.InstanceNormBlocked(), ["f32[2, 3, 4, 4]", "f32[3, 4]", "f32[4, 4]"],
     "one number for each channel"),
    (norm.GroupNorm(groups=2), ["f32[2, 3, 4]", "f32[3]", "f32[3]"], "do not make 2 groups"),
    (norm.LayerNorm(), ["f32[2, 3]", "f32[3]", "f32[3]", "f32[3]"], "a scale and a bias"),
    (norm.LayerNorm(), ["f32[2, 3]", "f32[2]"], "does not fit axes -1"),
    (norm.LayerNorm(), ["f32[2, 3]", "f32[2, 3]"], "does not fit axes -1"),
    (norm.RMSNorm(), ["f32[2, 3]", "f32[3]", "f32[3]"], "takes one scale"),
    (norm.LRN(size=0), ["f32[2, 3]"], "neighbourhood of 0"),
    (norm.Softmax(axis=2), ["f32[2, 3]"], "no axis 2"),
    (norm.LogSoftmax(), ["i32[2, 3]"], "not accepted"),
    (shape.Reshape(shape=(4,)), ["f32[3]"], "3 elements do not fill"),
    (shape.Reshape(shape=(N + 1,)), ["f32[n]"], "n elements do not fill"),
    (shape.Transpose(perm=(0, 0)), ["f32[2, 3]"], "no order of 2 axes"),
    (shape.Concat(axis=0), [], "needs an operand"),
    (shape.Concat(axis=0), ["f32[2]", "i32[2]"], "differ in rank or type"),
    (shape.Concat(axis=0), ["f32[2]", "f32[2, 1]"], "differ in rank or type"),
    (shape.Concat(axis=0), ["f32[2, 3]", "f32[2, 4]"], "another axis than 0"),
    (shape.Insert(offset=(0,)), ["f32[2]", "i32[2]"], "differ in rank or type"),
    (shape.Insert(offset=(0, 0)), ["f32[2]", "f32[2]"], "differ in rank or type"),
    (shape.Insert(offset=(1,)), ["f32[2]", "f32[2]"], "sticks out of 2"),
    (shape.Insert(offset=(-1,)), ["f32[2]", "f32[2]"], "sticks out of 2"),
    (shape.Slice(starts=(0,), sizes=(1,)), ["f32[2, 2]"], "for each axis"),
    (shape.Slice(starts=(0,), sizes=(1,), steps=(0,)), ["f32[2]"], "step is 0"),
    (shape.Slice(starts=(1,), sizes=(2,)), ["f32[2]"], "2 elements from 1 on"),
    (shape.Slice(starts=(N,), sizes=(1,)), ["f32[n]"], "1 elements from n on"),
    (shape.Slice(starts=(1,), sizes=(3,), steps=(-1,)), ["f32[2]"], "-1 apart"),
    (shape.Pad(before=(1,), after=(1, 2)), ["f32[2]"], "one amount per axis"),
    (shape.Pad(before=(1,), after=(1,), mode="round"), ["f32[2]"], "no mode 'round'"),
    (shape.Pad(before=(-2,), after=(-1,)), ["f32[2]"], "operand is too small"),
    (shape.Pad(before=(1,), after=(0,), mode="edge"), ["f32[0]"], "operand is too small"),
    (shape.Expand(shape=(2,)), ["f32[3]"], "does not expand to"),
    (shape.Expand(shape=(3,)), ["f32[2, 2]"], "does not expand to"),
    (shape.Tile(repeats=(2,)), ["f32[2, 2]"], "a count for each axis"),
    (channels.PackChannels(block=4), ["f32[2]"], "blocks of 4"),
    (channels.PackChannels(block=0), ["f32[2, 4]"], "blocks of 0"),
    (channels.UnpackChannels(channels=9), ["f32[1, 2, 3, 4]"], "do not hold 9"),
    (channels.UnpackChannels(channels=2), ["f32[1, 2]"], "do not hold 2"),
    (from_sizes.SizeTensor(values=(1, 2), shape=(3,)), [], "2 sizes do not make"),
    (from_sizes.SizeTensor(values=(1,), shape=(), dtype=DType.F32), [], "1 sizes do not make"),
    (from_sizes.Range(size=2, dtype=DType.BOOL), [], "no range of bool"),
    (from_sizes.Range(size=2, delta=0.5), [], "no range of i64 from 0 by 0.5"),
    (layout.DepthToSpace(blocksize=2), ["f32[1, 6, 2, 2]"], "blocks of 2"),
    (layout.DepthToSpace(blocksize=2), ["f32[1, 4, 2]"], "blocks of 2"),
    (layout.DepthToSpace(blocksize=2, mode="X"), ["f32[1, 4, 2, 2]"], "no mode 'X'"),
    (layout.SpaceToDepth(blocksize=2), ["f32[1, 4, 3, 2]"], "divide into blocks of 2"),
    (layout.Interleave(stride=(2,)), ["f32[1, 6, 2]"], "a stride for each"),
    (layout.Interleave(stride=(0,)), ["f32[1, 6, 2, 4]"], "a stride for each"),
    (layout.Interleave(stride=(4,)), ["f32[1, 6, 2, 4]"], "do not make 4 images"),
    (layout.ChannelShuffle(groups=4), ["f32[1, 6, 2]"], "do not make 4 groups"),
    (layout.ChannelShuffle(groups=0), ["f32[1, 6, 2]"], "do not make 0 groups"),
    (layout.ChannelShuffle(groups=1), ["f32[6]"], "do not make 1 groups"),
    (layout.MoveChannels(), ["f32[1, 6, 2]", "i32[3, 4]"], "a lane for each lane"),
    (layout.MoveChannels(), ["f32[1, 6, 2]", "i64[3, 2]"], "a lane for each lane"),
    (layout.MoveChannels(), ["f32[1, 6, 2]", "i32[6]"], "a lane for each lane"),
    (layout.MoveChannels(), ["f32[6, 2]", "i32[3, 2]"], "a lane for each lane"),
    (gather.Gather(), ["f32[3]", "f32[2]"], "indices of type f32"),
    (gather.Gather(axis=1), ["f32[3]", "i64[2]"], "no axis 1"),
    (gather.Gather(), ["f32[0]", "i64[2]"], "nothing to pick"),
    (gather.GatherElements(), ["f32[3]", "i64[2, 1]"], "differ in rank"),
    (gather.GatherElements(), ["f32[3, 2]", "i64[5, 3]"], "indices are larger"),
    (gather.GatherND(batch_dims=1), ["f32[3]", "i64[3]"], "1 batch dimensions"),
    (gather.GatherND(batch_dims=1), ["f32[3, 2]", "i64[2, 1]"], "batch dimensions differ"),
    (gather.GatherND(), ["f32[3, 2]", "i64[2, 3]"], "positions of 3 numbers"),
    (gather.GatherND(), ["f32[3, 2]", "i64[2, n]"], "positions of n numbers"),
    (gather.OneHot(depth=3), ["f32[3]", "f32[2]"], "integers and two values"),
    (gather.OneHot(depth=3), ["i64[3]", "f32[3]"], "integers and two values"),
    (gather.Trilu(), ["f32[3]"], "2 or more dimensions"),
    (gather.ReverseSequence(batch_axis=2), ["f32[3, 2, 2]", "i64[2]"], "first two axes"),
    (gather.ReverseSequence(), ["f32[3, 2]", "i64[3]"], "a length for each sequence"),
    (selection.RunningCount(), ["bool[2, 3]"], "a vector of bools"),
    (selection.FindCounts(count=2), ["i32[3]"], "a vector of i64"),
    (selection.UniqueRanks(), ["f32[3]"], "a matrix"),
    (resize.Resize(sizes=(4,), scales=(N * 0,)), ["f32[2]"], "scale 0 is not positive"),
    (sort.TopK(k=4), ["f32[2, 3]"], "4 of 3 elements"),
    (sort.TopK(k=N + 1), ["f32[n]"], "n \\+ 1 of n elements"),
    (scatter.ScatterElements(reduction="or"), ["f32[3]", "i64[2]", "f32[2]"], "reduction 'or'"),
    (scatter.ScatterElements(), ["f32[3]", "f32[2]", "f32[2]"], "indices of type f32"),
    (scatter.ScatterElements(), ["f32[3]", "i64[2]", "f64[2]"], "differ in their element type"),
    (scatter.ScatterElements(reduction="add"), ["bool[3]", "i64[2]", "bool[2]"], "not accepted"),
    (scatter.ScatterElements(), ["f32[3]", "i64[2, 1]", "f32[2, 1]"], "differ in rank"),
    (scatter.ScatterElements(), ["f32[3]", "i64[2]", "f32[3]"], "sizes do not fit"),
    (scatter.ScatterElements(), ["f32[3, 2]", "i64[2, 3]", "f32[2, 3]"], "sizes do not fit"),
    (scatter.ScatterND(), ["f32[3]", "i64[()]", "f32[()]"], "positions of None"),
    (scatter.ScatterND(), ["f32[3]", "i64[4, 2]", "f32[4]"], "positions of 2"),
    (scatter.ScatterND(), ["f32[3, 2]", "i64[4, 1]", "f32[4]"], "f32.4, 2. are due"),
    (scatter.ScatterND(), ["f32[3, 2]", "i64[4, 1]", "f32[4, 3]"], "f32.4, 2. are due"),
    (sample.GridSample(), ["f32[1, 1, 3, 3]", "f32[1, 2, 2, 3]"], "grid does not fit"),
    (sample.GridSample(), ["f32[1, 1, 3, 3]", "f32[1, 2, 2]"], "grid does not fit"),
    (sample.GridSample(), ["f32[1, 1, 3, 3]", "f32[2, 2, 2, 2]"], "differ in their batch"),
    (sample.GridSample(mode="area"), ["f32[1, 1, 3, 3]", "f32[1, 2, 2, 2]"], "no mode 'area'"),
    (sample.GridSample(padding_mode="x"), ["f32[1, 1, 3, 3]", "f32[1, 2, 2, 2]"], "padding 'x'"),
    (trigonometry.Atan(), ["i64[3]"], "i64 are not accepted"),
    (text.NumberOfText(), ["i64[3]"], "no text"),
    (checked_indices.CheckedIndices(sizes=(3,)), ["u8[3]"], "are i32 or i64"),
    (checked_indices.CheckedIndices(sizes=(3, 4)), ["i64[5, 3]"], "needs one size"),
    (text.TextOfNumber(), ["str[3]"], "no number"),
    (text.NumberOfBytes(), ["u8[3]", "i32[3]"], "needs bytes"),
    (text.ConcatText(), ["str[3]", "i64[3]"], "are no texts"),
    (text.ConcatText(), ["str[3]", "str[4]"], "differ in shape"),
    (text.MapText(), ["str[3]", "i64[4, 2]"], "no table of characters"),
    (text.MatchText(), ["str[3]", "u16[4, 255]", "u8[4]"], "no automaton"),
    (text.MatchText(), ["str[3]", "u16[4, 256]", "u8[5]"], "other states"),
    (text.ReadNumbers(to=DType.I32), ["str[3]"], "read as f64 or i64"),
    (text.WriteNumbers(), ["i32[3]"], "writes f32"),
    (resize.Resize(sizes=(4,), mode="area"), ["f32[2]"], "no mode 'area'"),
    (resize.Resize(sizes=(4,), coordinates="x"), ["f32[2]"], "no coordinates 'x'"),
    (resize.Resize(sizes=(4,), rounding="x"), ["f32[2]"], "no rounding 'x'"),
    (resize.Resize(sizes=(4,)), ["f32[2, 2]"], "for each axis"),
    (resize.Resize(sizes=(4,), scales=(1.0, 2.0)), ["f32[2]"], "for each axis"),
    (resize.Resize(sizes=(4,), scales=(-2.0,)), ["f32[2]"], "scale is not positive"),
    (resize.Resize(sizes=(4,)), ["f32[0]"], "nothing to sample"),
    (resize.Resize(sizes=(4,), mode="linear"), ["i8[2]"], "not accepted"),
    (quotient.Quotient(), ["f64[2]", "f64[2]", "f64[2]"], "needs f32 operands"),
    (quotient.Quotient(), ["f32[2]", "f32[()]", "f32[2]"], "as many inverses"),
    (elementwise.Cast(to=DType.STR), ["f32[2]"], "str is not made of f32"),
    (bits.BitCast(of=DType.F32, to=DType.I32), ["f64[2]"], "is not f32"),
    (bits.BitCast(of=DType.F32, to=DType.I64), ["f32[2]"], "not as many bits"),
    (cache.TensorScatter(mode="ring"), ["f32[2, 3, 4]", "f32[2, 1, 4]"], "no mode 'ring'"),
    (cache.TensorScatter(), ["f32[2, 3, 4]", "f32[2, 4]"], "differ in rank"),
    (cache.TensorScatter(axis=0), ["f32[2, 3]", "f32[1, 3]"], "axis is the batch"),
    (cache.TensorScatter(), ["f32[2, 3, 4]", "f32[2, 4, 4]"], "does not fit the cache"),
    (cache.TensorScatter(), ["f32[2, 3, 4]", "f32[2, 1, 4]", "i64[3]"], "an index for each row"),
    (COL2IM, ["f32[1, 6, 4]"], "columns of 4 elements"),
    (COL2IM, ["f32[1, 8, 5]"], "5 patches are not 4"),
    (columns.DeformColumns(kernel=(2, 2)), ["f32[1, 2, 3, 3]", "f32[1, 8, 2]"], "two dimensions"),
    (columns.DeformColumns(kernel=(2, 2)), ["f32[1, 2, 3, 3]", "f32[1, 4, 2, 2]"], "do not fit"),
    (columns.DeformColumns(kernel=(2, 2), groups=2), ["f32[1, 3, 3, 3]", "f32[1, 16, 2, 2]"],
     "no 2 groups"),
    (winograd.ConvWinograd(), ["f32[1, 2, 5, 5, 4]", "f32[4, 4, 3, 2, 4, 4]", "f32[3]"],
     "both forms"),
    (winograd.ConvWinograd(), ["f32[1, 2, 5, 5, 4]", "f32[4, 4, 3, 2, 4, 4]",
                               "f32[3, 2, 3, 2, 4, 4]"], "the weights do not fit"),
    (winograd.ConvWinograd(), ["f32[1, 2, 5, 5, 4]", "f32[4, 4, 3, 2, 4, 5]",
                               "f32[3, 2, 3, 3, 4, 4]"], "transformed weights do not fit"),
    (planes_conv.ConvPlanes(blocks=2), ["f32[1, 2, 5, 5, 16]", "bf16[1, 1, 3, 3]"], "packed bf16"),
    (planes_conv.ConvPlanes(blocks=3), ["f32[1, 2, 5, 5, 16]", "bf16[2, 1, 3, 3, 3, 16, 16, 2]"],
     "channel blocks do not fit"),
    (planes_planar.ConvPlanarPlanes(blocks=2, width=3), ["f32[1, 3, 5, 9]", "bf16[1, 1, 3, 1]"],
     "packed bf16"),
    (planes_planar.ConvPlanarPlanes(blocks=2, width=3),
     ["f32[1, 3, 5, 9]", "bf16[2, 1, 3, 3, 1, 16, 16, 2]"], "no lines of a kernel"),
    (planes_planar.ConvPlanarPlanes(blocks=2, width=3),
     ["f32[1, 9, 5, 9]", "bf16[2, 1, 3, 1, 1, 16, 16, 2]"], "the channels do not fit"),
    (planes_planar.ConvPlanarPlanes(blocks=2, width=3),
     ["f32[1, 3, 5, 9]", "bf16[2, 1, 3, 1, 1, 16, 16, 2]"], "not wide enough for 4 pixels"),
    (narrow.Narrow(), ["f64[2]"], "needs float32"),
    (narrow.Widen(), ["f16[2]"], "needs bf16"),
    (planes_pair.MatMulPair(planes=4), ["f32[2, 3]", "f32[3, 4]"], "one to three planes"),
    (planes_pair.MatMulPair(), ["f32[2, 3]", "f64[3, 4]"], "are not f32"),
    (planes_pair.MatMulPair(), ["f32[2, 3]", "f32[2, 4]"], "the sizes differ"),
    (planes_pair.MatMulPair(), ["f32[5, 2, 3]", "f32[6, 3, 4]"], "the stacks differ"),
    (planes_matmul.MatMulPlanes(n=4), ["f32[2, 3]", "f32[3, 4]"], "packed bf16 columns"),
    (planes_matmul.MatMulPlanes(n=4), ["f32[2, 3]", "bf16[1, 2, 1, 16, 16, 2]"], "inner sizes"),
    (planes_matmul.MatMulPlanes(n=33), ["f32[2, 32]", "bf16[2, 1, 3, 16, 16, 2]"],
     "less than 33 columns"),
    (random.RandomUniform(shape=(2,), seed=1, dtype=DType.I32), [], "no real numbers"),
    (roi.RoiAlign(out=(2, 2), samples=ONE), ["f32[1, 2, 5]", "f32[3, 4]", "i64[3]"], "four sides"),
    (roi.RoiAlign(out=(2, 2), samples=ONE), ["f32[1, 2, 5, 5]", "f32[3, 4]", "i64[2]"],
     "in number"),
    (roi.RoiAlign(out=(2, 2), samples=ONE, mode="min"), ["f32[1, 2, 5, 5]", "f32[3, 4]", "i64[3]"],
     "no mode 'min'"),
    (roi.MaxRoiPool(out=(2, 2)), ["f32[1, 2, 5, 5]", "f32[3, 4]"], "five numbers"),
    (UNPOOL, ["f32[1, 2, 3]", "i64[1, 2, 3]"], "rank of the kernel"),
    (UNPOOL, ["f32[1, 2, 3, 3]", "i64[1, 2, 3, 2]"], "differ in shape"),
]  # fmt: skip


def refuse(op: Op, types: list[str]) -> ShapeError:
    parsed = [parse_type(ast.parse(t, mode="eval").body) for t in types]
    with pytest.raises(ShapeError) as caught:
        op.infer(*parsed)
    return caught.value


@pytest.mark.parametrize(("op", "types", "why"), REFUSED, ids=lambda v: str(v)[:40])
def test_infer_says_what_does_not_fit(op, types, why):
    error = refuse(op, types)
    assert error.fields["op"] == op.name
    with pytest.raises(ShapeError, match=why):
        raise error


def test_every_refusal_has_a_test():
    """The places that build a `ShapeError` are all among those that the cases above reach."""
    reached: set[tuple[str, int]] = set()
    for op, types, _ in REFUSED:
        trace = refuse(op, types).__traceback__
        while trace is not None:
            reached.add((Path(trace.tb_frame.f_code.co_filename).name, trace.tb_lineno))
            trace = trace.tb_next
    missing = [
        f"{path.name}:{node.lineno}"
        for path in sorted(FOLDER.glob("*.py"))
        if path.name not in WITH_BODIES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and "reject" in ast.unparse(node)
        if (path.name, node.lineno) not in reached
    ]
    assert missing == []
