"""What candidates are compared with has the bits of the plain nest, without its schedule's help."""

import ast
from pathlib import Path

import numpy as np
import pytest

from dlc.autotune import reference
from dlc.autotune.reference import reference_nest
from dlc.codegen.llvm.emit import emit_func
from dlc.schedule.interpret import numpy_dtype, run_func
from dlc.schedule.loop import For, walk
from dlc.schedule.pipeline import tidy
from dlc.schedule.text import parse_func
from tests.autotune import examples

TARGET = examples.Target(features=frozenset({"avx2", "fma"}))
PACKED = """
def packed(x: f32[3, 5], w: bf16[3, 5, 16], *, y: f32[3, {n}]):
    for i in range(3):
        for j in range({n}):
            y[i, j] = x[i, 0] * 2.0
            for k in range(5):
                y[i, j] += x[i, k] * f32(w[j // 16, k, j % 16]) * (2.0 if k < 2 else 1.0)
"""
TOP = """
def top(x: i32[4, 33], *, y: i32[33]):
    for j in range(33):
        y[j] = x[0, j]
        for r in range(2):
            for k in range(2):
                y[j] = max(y[j], x[r * 2 + k, j])
"""
UNLIKE = {
    "few": "def f(x: f32[9, 15], *, y: f32[15]):\n    for j in range(15):\n        y[j] = 0.0\n"
    "        for k in range(9):\n            y[j] += x[k, j]\n",
    "one": "def f(x: f32[9, 16], *, y: f32[1]):\n    for j in range(16):\n        y[0] = 0.0\n"
    "        for k in range(9):\n            y[0] += x[k, j]\n",
    "chosen": "def f(x: f32[9, 16], c: f32[16], *, y: f32[16]):\n    for j in range(16):\n"
    "        y[j] = 0.0\n        for k in range(9):\n"
    "            y[j] += (x[k, j] if c[j] != 0.0 else 0.0)\n",
    "reads": "def f(x: f32[9, 16], *, y: f32[16]):\n    for j in range(16):\n        y[j] = 0.0\n"
    "        for k in range(9):\n            y[j] += x[k, j] + y[min(k, j)]\n",
    "shared": '@in_place(y="x")\ndef f(x: f32[16], w: f32[9, 16], *, y: f32[16]):\n'
    "    for j in range(16):\n        y[j] = 0.0\n        for k in range(9):\n"
    "            y[j] += w[k, j]\n",
    "special": "def f(x: f32[9, 16], *, y: f32[16]):\n    for j in range(16):\n        y[j] = 0.0\n"
    "        for k in range(9):\n            y[j] += exp(x[k, j])\n",
    "open": "def f(n: size, x: f32[9, n], *, y: f32[n]):\n    for j in range(n):\n"
    "        y[j] = 0.0\n        for k in range(9):\n            y[j] += x[k, j]\n",
}


def outputs(func):
    rng = np.random.default_rng(3)
    arrays = {}
    for buffer in func.inputs:
        values = rng.normal(size=buffer.type.static_shape) * 100
        arrays[buffer.name] = values.astype(numpy_dtype(buffer.type.dtype))
    found = run_func(func, {}, arrays)
    return {b.name: found[b.name] for b in func.outputs}


@pytest.mark.parametrize(
    "text",
    [
        examples.MATMUL.format(m=3, n=37, k=11),
        examples.MATMUL.format(m=1, n=16, k=1),
        PACKED.format(n=48),
        PACKED.format(n=35),
        TOP,
    ],
)
def test_sums_side_by_side_have_the_bits_of_the_plain_nest(text):
    func = parse_func(text)
    changed = reference_nest(func)
    assert any(s.kind == "vectorize" for s in walk(changed.body) if isinstance(s, For))
    for made in (changed, tidy(changed)):
        expected, found = outputs(func), outputs(made)
        assert {n: a.tobytes() for n, a in found.items()} == {
            n: a.tobytes() for n, a in expected.items()
        }
    assert "<16 x " in emit_func(tidy(changed), TARGET)
    assert "<16 x " not in emit_func(tidy(func), TARGET)


@pytest.mark.parametrize("text", UNLIKE.values(), ids=UNLIKE)
def test_what_cannot_go_side_by_side_stays(text):
    func = parse_func(text)
    assert reference_nest(func) == func


def test_no_rule_and_no_primitive_takes_part():
    tree = ast.parse(Path(reference.__file__).read_text())
    imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    known = {"__future__", "dataclasses", "dlc.schedule.loop"}
    assert {name for name in imported - known if not name.startswith("dlc.te.")} == set()
