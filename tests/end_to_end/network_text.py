"""Collects the statements of networks that are too long to write down one by one."""

from __future__ import annotations

import numpy as np

from tests.end_to_end.networks import Network


class Text:
    """Collects inputs and statements of a network in ONNX's text form."""

    def __init__(self) -> None:
        self.params: list[str] = []
        self.lines: list[str] = []
        self.values: dict[str, np.ndarray] = {}

    def weight(self, *shape: int) -> str:
        name = f"w_{len(self.params)}"
        self.params.append(f"float[{','.join(map(str, shape))}] {name}")
        return name

    def constant(self, kind: str, array: np.ndarray) -> str:
        name = f"c_{len(self.params)}"
        shape = ",".join(map(str, array.shape))
        self.params.append(f"{kind}[{shape}] {name}" if shape else f"{kind} {name}")
        self.values[name] = array
        return name

    def __call__(self, operator: str, *operands: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {operator}({', '.join(operands)})")
        return name

    def network(self, inputs: str, outputs: str) -> Network:
        body = "\n".join(self.lines)
        text = f"({', '.join([inputs, *self.params])}) => ({outputs}) {{\n{body}\n}}"
        return Network(text, rtol=1e-4, values=self.values)


def conv(t: Text, x: str, sizes: tuple[int, int], kernel: int, stride: int, group: int = 1) -> str:
    """A convolution that keeps its image, or halves it, with a bias."""
    given, made = sizes
    w, b = t.weight(made, given // group, kernel, kernel), t.weight(made)
    pad = kernel // 2
    attributes = f"strides=[{stride},{stride}], pads=[{pad},{pad},{pad},{pad}], group={group}"
    return t(f"Conv<{attributes}>", x, w, b)
