"""Small networks in ONNX's text form, with random weights, and the sizes they are run with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper, parser


@dataclass(frozen=True)
class Network:
    """A model as text. Inputs whose names start with `w_` become weights."""

    text: str
    sizes: Sequence[Mapping[str, int]] = ({},)
    opset: int = 17
    rtol: float = 1e-5
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        head = f'<ir_version: 8, opset_import: ["": {self.opset}, "com.microsoft": 1]>'
        model = parser.parse_model(f"{head}\nmain {self.text}")
        rng = np.random.default_rng(0)
        inputs = list(model.graph.input)
        del model.graph.input[:]
        for value in inputs:
            if value.name in self.values:
                array = np.asarray(self.values[value.name])
            elif value.name.startswith("w_"):
                shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
                scale = np.sqrt(max(1, np.prod(shape[1:])))
                array = (rng.standard_normal(shape) / scale).astype(np.float32)
            else:
                model.graph.input.append(value)
                continue
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
        return model

    def feeds(self, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
        """Normal floats; integers from 0 to 4; booleans."""
        rng = np.random.default_rng(1)
        feeds = {}
        for value in self.model().graph.input:
            kind = value.type.tensor_type
            shape = [sizes.get(d.dim_param, d.dim_value) for d in kind.shape.dim]
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            draw = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 5, shape)
            feeds[value.name] = np.asarray(draw, dtype)
        return feeds


BATCHES = [{"batch": n} for n in (1, 2, 7)]

NETWORKS = {
    "experts": Network(
        """(float[batch,12] x, float[12,6] w_router, float[6,20,12] w_1, float[6,12,20] w_2,
            int64[1] two, int64[2] column, int64[3] each, int64[3] twice, int64[2] rows,
            int64[3] pairs, int64[1] one, int64[1] last)
        => (float[batch,12] y) {
            r = MatMul(x, w_router)
            p = Softmax(r)
            share, chosen = TopK(p, two)
            i = Reshape(chosen, column)
            a = Reshape(x, each)
            b = Expand(a, twice)
            c = Reshape(b, rows)
            d = Unsqueeze(c, last)
            v = GatherND(w_1, i)
            e = MatMul(v, d)
            f = Relu(e)
            w = GatherND(w_2, i)
            g = MatMul(w, f)
            h = Reshape(g, pairs)
            k = Unsqueeze(share, last)
            m = Mul(h, k)
            y = ReduceSum<keepdims=0>(m, one)
        }""",
        BATCHES,
        values={
            "two": np.array([2]),
            "column": np.array([-1, 1]),
            "each": np.array([-1, 1, 12]),
            "twice": np.array([1, 2, 1]),
            "rows": np.array([-1, 12]),
            "pairs": np.array([-1, 2, 12]),
            "one": np.array([1]),
            "last": np.array([2]),
        },
    ),
    "perceptron": Network(
        """(float[batch,13] x, float[17,13] w_1, float[17] w_2, float[17,5] w_3, float[5] w_4)
        => (float[batch,5] y) {
            h = Gemm<transB=1>(x, w_1, w_2)
            r = Relu(h)
            z = Gemm(r, w_3, w_4)
            y = Softmax(z)
        }""",
        BATCHES,
    ),
    "convolutions": Network(
        """(float[batch,3,21,19] x, float[16,3,3,3] w_1, float[16] w_2, float[16,1,3,3] w_3,
            float[16] w_4, float[24,16,1,1] w_5, float[24,6,5,5] w_6, float[10,24] w_7,
            float zero, float six)
        => (float[batch,10] y) {
            a = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w_1, w_2)
            b = HardSwish(a)
            c = Conv<group=16, pads=[1,1,1,1]>(b, w_3, w_4)
            d = Clip(c, zero, six)
            e = Conv(d, w_5)
            f = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(e)
            g = Conv<group=4, pads=[2,2,2,2], dilations=[1,1]>(f, w_6)
            h = Add(f, g)
            i = GlobalAveragePool(h)
            j = Flatten(i)
            y = Gemm<transB=1>(j, w_7)
        }""",
        BATCHES,
        values={"zero": np.float32(0), "six": np.float32(6)},
    ),
    "normalised convolutions": Network(
        """(float[batch,5,9,11] x, float[8,5,3,3] w_1, float[8] w_2, float[8] w_3, float[8] w_4,
            float[8] variance, float[8,8,3,3] w_5)
        => (float[batch,8,9,11] y, float[batch,8,1,1] z) {
            a = Conv<pads=[1,1,1,1]>(x, w_1)
            b = BatchNormalization(a, w_2, w_3, w_4, variance)
            c = Relu(b)
            d = Conv<pads=[1,1,1,1]>(c, w_5)
            e = InstanceNormalization(d, w_2, w_3)
            y = Add(e, c)
            z = ReduceMean<axes=[2,3]>(y)
        }""",
        BATCHES,
        values={"variance": np.linspace(0.5, 2, 8, dtype=np.float32)},
    ),
    "images of any size": Network(
        """(float[batch,3,height,width] x, float[7,3,3,3] w_1, float[7] w_2, float[4,7,3,3] w_3)
        => (float[batch,4,h2,w2] y) {
            a = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w_1, w_2)
            b = LeakyRelu<alpha=0.1>(a)
            c = AveragePool<kernel_shape=[2,2], strides=[1,1]>(b)
            y = Conv<pads=[1,1,1,1]>(c, w_3)
        }""",
        [{"batch": n, "height": h, "width": w} for n, h, w in ((1, 7, 5), (2, 16, 33), (1, 40, 9))],
    ),
    "up and down": Network(
        """(float[batch,4,8,6] x, float[8,4,3,3] w_1, float[8,4,2,2] w_2, float[3,8,1,1] w_3,
            float[4] scales)
        => (float[batch,3,16,12] y) {
            a = Conv<strides=[2,2], pads=[1,1,1,1]>(x, w_1)
            b = Sigmoid(a)
            c = ConvTranspose<strides=[2,2]>(b, w_2)
            d = Concat<axis=1>(x, c)
            e = Resize<mode="nearest", nearest_mode="floor",
                       coordinate_transformation_mode="asymmetric">(d, , scales)
            y = Conv(e, w_3)
        }""",
        BATCHES,
        values={"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "concat and split": Network(
        """(float[batch,6,10] x, float[batch,4,10] z, int64[3] parts, int64[1] axes)
        => (float[batch,2,10] a, float[batch,11,10] b) {
            c = Concat<axis=1>(x, z)
            a, p, q = Split<axis=1>(c, parts)
            s = Tanh(p)
            r = ReduceSum(q, axes)
            b = Concat<axis=1>(q, s, r)
        }""",
        BATCHES,
        values={"parts": np.array([2, 5, 3]), "axes": np.array([1])},
    ),
    "attention": Network(
        """(float[batch,seq,24] x, float[batch,1,1,seq] mask, float[24] w_1, float[24] w_2,
            float[24,72] w_3, float[72] w_4, float[24,24] w_5, float[24,96] w_6,
            float[96,24] w_7, int64[5] heads, int64[3] flat, float scale, float half, float one,
            float root, int64[3] thirds, int64[1] first)
        => (float[batch,seq,24] y) {
            n = LayerNormalization<axis=-1, epsilon=0.00001>(x, w_1, w_2)
            m = MatMul(n, w_3)
            qkv = Add(m, w_4)
            r = Reshape(qkv, heads)
            t = Transpose<perm=[2,0,3,1,4]>(r)
            q3, k3, v3 = Split<axis=0>(t, thirds)
            q = Squeeze(q3, first)
            k = Squeeze(k3, first)
            v = Squeeze(v3, first)
            kt = Transpose<perm=[0,1,3,2]>(k)
            s = MatMul(q, kt)
            u = Mul(s, scale)
            w = Add(u, mask)
            p = Softmax<axis=-1>(w)
            o = MatMul(p, v)
            ot = Transpose<perm=[0,2,1,3]>(o)
            of = Reshape(ot, flat)
            oo = MatMul(of, w_5)
            res = Add(x, oo)
            up = MatMul(res, w_6)
            div = Div(up, root)
            er = Erf(div)
            er1 = Add(er, one)
            ge = Mul(up, er1)
            gh = Mul(ge, half)
            down = MatMul(gh, w_7)
            y = Add(res, down)
        }""",
        [{"batch": b, "seq": s} for b, s in ((1, 1), (2, 9), (1, 33))],
        values={
            "heads": np.array([0, 0, 3, 4, 6]),
            "flat": np.array([0, 0, 24]),
            "thirds": np.array([1, 1, 1]),
            "first": np.array([0]),
            "scale": np.float32(6**-0.5),
            "half": np.float32(0.5),
            "one": np.float32(1),
            "root": np.float32(2**0.5),
        },
    ),
    "embedding": Network(
        """(int64[batch,seq] ids, float[5,8] w_1, float[8,3] w_2)
        => (float[batch,seq,3] y, int64[batch,seq] best) {
            e = Gather(w_1, ids)
            m = MatMul(e, w_2)
            y = LogSoftmax<axis=-1>(m)
            best = ArgMax<axis=-1, keepdims=0>(m)
        }""",
        [{"batch": b, "seq": s} for b, s in ((1, 1), (3, 6))],
    ),
    "lstm": Network(
        """(float[seq,batch,6] x, float[2,20,6] w_1, float[2,20,5] w_2, float[2,40] w_3)
        => (float[seq,2,batch,5] y, float[2,batch,5] h, float[2,batch,5] c) {
            y, h, c = LSTM<hidden_size=5, direction="bidirectional">(x, w_1, w_2, w_3)
        }""",
        [{"batch": b, "seq": s} for b, s in ((1, 1), (3, 8))],
    ),
    "gru": Network(
        """(float[seq,batch,6] x, float[1,15,6] w_1, float[1,15,5] w_2, float[1,30] w_3,
            float[5,3] w_4, int64[1] one)
        => (float[batch,seq,3] z) {
            y, h = GRU<hidden_size=5, linear_before_reset=1>(x, w_1, w_2, w_3)
            s = Squeeze(y, one)
            t = Transpose<perm=[1,0,2]>(s)
            z = MatMul(t, w_4)
        }""",
        [{"batch": b, "seq": s} for b, s in ((1, 1), (3, 8))],
        values={"one": np.array([1])},
    ),
    "a loop": Network(
        """(float[batch,4] x, float[4,4] w_1, int64 steps, bool go)
        => (float[batch,4] y) {
            y = Loop(steps, go, x) <
                body = turn (int64 i, bool c_in, float[batch,4] h)
                => (bool c_out, float[batch,4] h_out) {
                    c_out = Identity(c_in)
                    m = MatMul(h, w_1)
                    h_out = Tanh(m)
                }
            >
        }""",
        BATCHES,
        values={"steps": np.int64(5), "go": np.bool_(True)},
    ),
    "conditions": Network(
        """(float[batch,9] x, float[batch,9] z, float limit, float c2)
        => (float[batch,9] y, bool[batch,9] above, int32[batch,9] n) {
            above = Greater(x, z)
            w = Where(above, x, z)
            c = Min(w, limit)
            n = Cast<to=6>(c)
            y = Pow(c, c2)
        }""",
        BATCHES,
        values={"limit": np.float32(1.5), "c2": np.float32(2)},
    ),
    "the best three": Network(
        """(float[batch,11] x, int64[1] k, int64[1] axis)
        => (float[batch,3] values, int64[batch,3] places, float[batch,11] total) {
            values, places = TopK(x, k)
            total = CumSum(x, axis)
        }""",
        BATCHES,
        values={"k": np.array([3]), "axis": np.array([1])},
    ),
    "constants that are views": Network(
        """(float[batch,5] x, float[12] w_1, int64[1] from, int64[1] to, int64[1] axis,
            int64[1] step)
        => (float[batch,5] y) {
            w = Slice(w_1, from, to, axis, step)
            y = Add(x, w)
        }""",
        BATCHES,
        values={
            "from": np.array([1]),
            "to": np.array([11]),
            "axis": np.array([0]),
            "step": np.array([2]),
        },
    ),
    "quantised": Network(
        """(float[batch,3,8,8] x, int8[6,3,3,3] kernel, float s, int8 z, float sw, float so)
        => (float[batch,6,8,8] y) {
            q = QuantizeLinear(x, s, z)
            d = DequantizeLinear(q, s, z)
            w = DequantizeLinear(kernel, sw, z)
            c = Conv<pads=[1,1,1,1]>(d, w)
            qo = QuantizeLinear(c, so, z)
            y = DequantizeLinear(qo, so, z)
        }""",
        BATCHES,
        values={
            "kernel": np.random.default_rng(2).integers(-100, 100, (6, 3, 3, 3)).astype(np.int8),
            "s": np.float32(0.03),
            "z": np.int8(0),
            "sw": np.float32(0.01),
            "so": np.float32(0.25),
        },
    ),
    "the same result twice": Network(
        """(float[batch,4] x) => (float[batch,4] a, float[batch,4] b, float[batch,4] c) {
            a = Neg(x)
            b = Identity(a)
            c = Identity(x)
        }""",
        BATCHES,
    ),
}
