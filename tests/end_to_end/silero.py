"""Silero VAD's architecture with few channels, as a `Network`.

A spectrum by convolution, an encoder, one step of an LSTM whose state goes in and out, and a
decoder; one branch for each rate of samples, and one for a dimension that is perhaps 1.

Source: Silero Team, "Silero VAD: pre-trained enterprise-grade Voice Activity Detector" (2021).
"""

from __future__ import annotations

import numpy as np

from tests.end_to_end.networks import Network

_TEXT = """
(float[batch,144] x, float[2,batch,16] state, int64 rate, int64 fast, int64[2] pads, int64[1] zero,
 int64[1] one, int64[1] two, int64[1] half, int64[1] all, int64 first, int64 second,
 float[34,1,32] w_basis, float[16,17,3] w_1, float[16] w_2, float[8,16,3] w_3, float[8] w_4,
 float[8,8,3] w_5, float[8] w_6, float[16,8,3] w_7, float[16] w_8, float[1,64,16] w_9,
 float[1,64,16] w_10, float[1,128] w_11, float[1,16,1] w_12, float[1] w_13)
=> (float[batch,1] y, float[2,batch,16] next) {
    is_fast = Equal(rate, fast)
    y, next = If(is_fast) <
        then_branch = then_body () => (y_1, next_1) {
            padded = Pad<mode="reflect">(x, pads, , one)
            wide = Unsqueeze(padded, one)
            spectrum = Conv<strides=[16]>(wide, w_basis)
            real = Slice(spectrum, zero, half, one)
            imaginary = Slice(spectrum, half, all, one)
            squares = Mul(real, real)
            others = Mul(imaginary, imaginary)
            power = Add(squares, others)
            magnitude = Sqrt(power)
            a = Conv<pads=[1,1]>(magnitude, w_1, w_2)
            b = Relu(a)
            c = Conv<pads=[1,1], strides=[2]>(b, w_3, w_4)
            d = Relu(c)
            e = Conv<pads=[1,1], strides=[2]>(d, w_5, w_6)
            f = Relu(e)
            g = Conv<pads=[1,1], strides=[3]>(f, w_7, w_8)
            h = Relu(g)
            sizes = Shape(h)
            length = Gather(sizes, two)
            is_one = Equal(length, one)
            flag = Squeeze(is_one)
            step = If(flag) <
                then_branch = squeezed () => (s_1) { s_1 = Squeeze(h, two) },
                else_branch = kept () => (s_2) { s_2 = Identity(h) }>
            sequence = Unsqueeze(step, zero)
            hidden = Gather(state, first)
            cell = Gather(state, second)
            hidden_1 = Unsqueeze(hidden, zero)
            cell_1 = Unsqueeze(cell, zero)
            lines, last, memory = LSTM<hidden_size=16>(
                sequence, w_9, w_10, w_11, , hidden_1, cell_1)
            next_1 = Concat<axis=0>(last, memory)
            state_line = Squeeze(last, zero)
            column = Unsqueeze(state_line, two)
            bent = Relu(column)
            score = Conv(bent, w_12, w_13)
            chance = Sigmoid(score)
            y_1 = ReduceMean<keepdims=0>(chance, two)
        },
        else_branch = else_body () => (y_2, next_2) {
            y_2 = ReduceMean(x, one)
            next_2 = Identity(state)
        }>
}
"""


def silero() -> Network:
    """The network for its rate of samples, at any batch."""
    values = {
        "rate": np.int64(16000), "fast": np.int64(16000), "pads": np.array([0, 16]),
        "zero": np.array([0]), "one": np.array([1]), "two": np.array([2]),
        "half": np.array([17]), "all": np.array([34]), "first": np.int64(0),
        "second": np.int64(1),
    }  # fmt: skip
    sizes = [{"batch": n} for n in (1, 3)]
    return Network(_TEXT, sizes, opset=18, rtol=1e-4, values=values)
