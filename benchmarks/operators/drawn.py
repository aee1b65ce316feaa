"""Layers of random sizes: what a list of cases that somebody chose does not hold.

Sizes are drawn by their logarithm, and more than half of them are multiples of 8, as in networks. A
layer has at most so many multiply-adds that a run takes some milliseconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

MOST = 6e8  # multiply-adds
ACTIVATIONS = ("Identity", "Identity", "Relu", "Sigmoid", "HardSwish")


class _Draw(random.Random):
    def size(self, low: int, high: int) -> int:
        """A size between two."""
        found = round(math.exp(self.uniform(math.log(low), math.log(high))))
        return found // 8 * 8 if found >= 8 and self.random() < 0.6 else found


def _case(inputs: str, nodes: str, last: str = "Identity") -> str:
    """The text of a layer whose result `c` goes through one more operator."""
    return f"({inputs}) => (float y) {{ {nodes} y = {last}(c) }}"


def _conv(draw: _Draw) -> str:
    high = draw.choice([1, 1, 3, 3, 3, 5, 7, 2, 4])
    wide = high if draw.random() < 0.85 else draw.choice([1, 3, 5])
    step, apart = draw.choice([1, 1, 1, 2]), 2 if high > 1 and draw.random() < 0.1 else 1
    images, rows, columns = draw.choice([1, 1, 1, 2, 8]), draw.size(5, 128), draw.size(5, 128)
    groups, c, o = 1, draw.size(3, 512), draw.size(8, 512)
    if (kind := draw.random()) < 0.15:
        groups = c = o = draw.size(8, 512)
    elif kind < 0.25:
        groups = draw.choice([2, 4, 8, 32])
        c, o = groups * draw.size(1, 32), groups * draw.size(1, 32)
    while images * rows * columns * c * o // groups * high * wide > MOST * step * step:
        if images > 1:
            images = 1
        elif rows * columns > 256:
            rows, columns = max(8, rows // 2), max(8, columns // 2)
        else:
            c, o = (max(1, n // groups // 2) * groups for n in (c, o))
    rows, columns = max(rows, apart * high), max(columns, apart * wide)
    top, left = (apart * (n - 1) // 2 if draw.random() < 0.8 else 0 for n in (high, wide))
    said = f"strides=[{step},{step}],dilations=[{apart},{apart}],group={groups}"
    x = f"float[{images},{c},{rows},{columns}] x"
    inputs = f"{x}, float[{o},{c // groups},{high},{wide}] w, float[{o}] w1"
    node = f"c = Conv<{said},pads=[{top},{left},{top},{left}]>(x, w, w1)"
    return _case(inputs, node, draw.choice(ACTIVATIONS))


def _transposed(draw: _Draw) -> str:
    kernel, step = draw.choice([2, 3, 4, 4, 5]), draw.choice([1, 2, 2, 2, 4])
    c, o, size = draw.size(8, 256), draw.size(1, 256), draw.size(4, 64)
    while size * size * c * o * kernel * kernel > MOST:
        size = max(2, size // 2)
    pad = min((kernel - 1) // 2, 1)
    inputs = f"float[1,{c},{size},{size}] x, float[{c},{o},{kernel},{kernel}] w"
    said = f"strides=[{step},{step}],pads=[{pad},{pad},{pad},{pad}]"
    return _case(inputs, f"c = ConvTranspose<{said}>(x, w)")


def _product(draw: _Draw) -> str:
    m, k, n = draw.size(1, 1024), draw.size(8, 3000), draw.size(4, 3000)
    while m * k * n > MOST:
        m = max(1, m // 2)
    inputs = f"float[{m},{k}] x, float[{k},{n}] w, float[{n}] w1"
    return _case(
        inputs, "p = MatMul(x, w) c = Add(p, w1)", draw.choice(["Identity", "Relu", "Gelu"])
    )


def _stack(draw: _Draw) -> str:
    b, m, k, n = draw.size(1, 64), draw.size(1, 512), draw.size(4, 256), draw.size(1, 512)
    while b * m * k * n > MOST:
        b, m = max(1, b // 2), max(1, m // 2)
    return _case(f"float[{b},{m},{k}] x, float[{b},{k},{n}] z", "c = MatMul(x, z)")


def _attention(draw: _Draw) -> str:
    heads, size = draw.choice([1, 2, 4, 8, 12]), draw.choice([16, 32, 40, 64, 128])
    rows, keys = draw.size(8, 700), draw.size(8, 700)
    counts = {"x": rows, "v": keys, "z": keys}
    parts = ", ".join(f"float[1,{heads},{n},{size}] {name}" for name, n in counts.items())
    nodes = "t = Transpose<perm=[0,1,3,2]>(v) s = MatMul(x, t) p = Softmax<axis=-1>(s)"
    return _case(parts, f"{nodes} c = MatMul(p, z)")


def _bytes(draw: _Draw) -> str:
    m, k, n = draw.size(1, 512), draw.size(8, 2000), draw.size(4, 2000)
    while m * k * n > MOST:
        m = max(1, m // 2)
    nodes = "q, s, o = DynamicQuantizeLinear(x) p = MatMulInteger(q, w127, o) f = Cast<to=1>(p)"
    return _case(f"float[{m},{k}] x, int8[{k},{n}] w127", f"{nodes} c = Mul(f, s)")


def _recurrent(draw: _Draw) -> str:
    kind, gates = draw.choice([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    steps, batch = draw.size(1, 100), draw.choice([1, 1, 2, 8])
    inner, size = draw.size(8, 512), draw.size(8, 512)
    weights = f"float[1,{gates * size},{inner}] w, float[1,{gates * size},{size}] w1"
    node = f"c = {kind}<hidden_size={size}>(x, w, w1)"
    return _case(f"float[{steps},{batch},{inner}] x, {weights}", node)


KINDS: dict[str, Callable[[_Draw], str]] = {
    "conv": _conv,
    "transposed": _transposed,
    "product": _product,
    "stack": _stack,
    "attention": _attention,
    "bytes": _bytes,
    "recurrent": _recurrent,
}


def drawn(kind: str, seed: int, count: int) -> dict[str, str]:
    """The texts of some layers of a kind; the same for a seed."""
    draw = _Draw(seed)
    return {f"{kind}_{seed}_{n}": KINDS[kind](draw) for n in range(count)}
