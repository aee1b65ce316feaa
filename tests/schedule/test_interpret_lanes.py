"""What runs at once gives, bit for bit, what running one iteration after another gives."""

import ast

import numpy as np
import pytest

from dlc.schedule import interpret, interpret_syntax
from dlc.schedule.interpret import run_func
from dlc.schedule.interpret_lanes import loops_at_once
from tests.schedule.data import parse

RANDOM = np.random.default_rng(0)
A, B = RANDOM.standard_normal((2, 12, 40)).astype(np.float32)
P = RANDOM.permutation(40).astype(np.int32)

TOGETHER = {
    "arithmetic": "for j in {kind}(40):\n    Y[3, j] = A[3, j] * B[3, j] / (A[2, j] - 2.0)",
    "a tail": "for o in range(3):\n    for j in {kind}(16):\n"
    "        if o * 16 + j < 40:\n            Y[2, o * 16 + j] = A[2, o * 16 + j]",
    "two conditions": "for j in {kind}(40):\n    if j < 30:\n        Y[0, j] = 1.0\n"
    "        if 20 < j and A[0, j] < 0.0:\n            Y[0, j] += A[1, j]\n    Y[1, j] = A[2, j]",
    "a border": "for j in {kind}(40):\n    Y[4, j] = (A[4, j - 1] if 0 < j else 0.5)",
    "borders on both sides": "for j in {kind}(40):\n"
    "    Y[4, j] = (0.25 if 38 < j else (A[4, j - 1] if 0 < j else 0.5))",
    "sums beside one another": "for j in {kind}(40):\n    Y[0, j] = 0.0\n    for k in range(12):\n"
    "        Y[0, j] += A[k, j] * B[k, 1]",
    "rows": "for i in {kind}(12):\n    for j in range(3):\n        Y[i, j] = max(A[i, j], B[i, 0])",
    "functions": "for j in {kind}(40):\n"
    "    Y[0, j] = exp(A[0, j]) + erf(B[0, j]) * flush(A[1, j]) + tanh(f32(f64(B[1, j])))",
    "casts": "for j in {kind}(40):\n    Y[0, j] = f32(i8(A[0, j] * 200.0)) + f32(u8(j * 9))\n"
    "    Y[1, j] = f32(i32(B[0, j] * 9.0) / i32(4)) + f32(j // 7 - j % 3)",
    "saturation": "for j in {kind}(40):\n"
    "    Y[0, j] = f32(i32(A[0, j] * 1e20)) + f32(u8(A[1, j] * inf)) + f32(i32(A[2, j] - nan))\n"
    "    Y[1, j] = f32(i64(A[0, j] * 1e30) // i64(3)) + f32(bf16(A[1, j])) + f32(f16(B[1, j]))",
    "a gather": "for j in {kind}(40):\n    Y[0, j] = A[2, index(P[j])]",
    "one condition for all": "for j in {kind}(40):\n"
    "    Y[0, j] = (exp(A[0, j]) if (1 if j < 40 else 2) < 2 else 2.0)\n"
    "    if (0.0 if j < 40 else A[0, j]) < 1.0:\n        Y[1, j] = exp(A[1, j])",
    "truths": "for j in {kind}(40):\n"
    "    Y[0, j] = (1.0 if A[0, j] < B[0, j] or isnan(A[1, j]) else f32(A[2, j] < 0.0))",
}
APART = {
    "a scan": "for j in range(39):\n    Y[0, j + 1] = Y[0, j] + A[0, j]",
    "one sum": "for j in range(40):\n    Y[0, 0] += A[0, j]",
    "an element of several": "for j in range(40):\n    Y[0, j // 2] = A[0, j]",
    "an element another moves": "for j in range(20):\n    for k in range(3):\n"
    "        Y[0, k + j] = A[k, j]",
    "rows that an element names": "for j in range(12):\n    Y[j, index(P[j])] = Y[0, 0] + 1.0",
    "memory of its own": 'for j in range(40):\n    t = alloc(f32[1], "local")\n'
    "    t[0] = A[0, j]\n    Y[0, j] = t[0]",
    "few": "for j in range(7):\n    Y[0, j] = A[0, j]",
    "sums of so many": "for j in range(40):\n    Y[0, j] = 0.0\n    for k in range(j):\n"
    "        Y[0, j] += A[0, k]",
    "a power": "for j in range(40):\n    Y[0, j] = A[0, j] ** 2.0",
    "a negation": "for j in range(40):\n    if not A[0, j] < 0.0:\n        Y[0, j] = 1.0",
}


def function(body, head=""):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return parse(
        f"{head}def f(A: f32[12, 40], B: f32[12, 40], P: i32[40], *, Y: f32[12, 40]):\n{lines}"
    )


@pytest.fixture(autouse=True)
def nothing_compiled():
    """What one test has run together is no other's."""
    interpret._compile.cache_clear()
    yield
    interpret._compile.cache_clear()


def result(func):
    interpret._compile.cache_clear()
    with np.errstate(all="ignore"):
        return run_func(func, {}, {"A": A, "B": B, "P": P})["Y"].view(np.int32)


@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("kind", ["range", "vectorize", "parallel"])
def test_together_is_as_one_by_one(name, kind, monkeypatch):
    func = function(TOGETHER[name].format(kind=kind))
    together = result(func)
    monkeypatch.setattr(interpret_syntax, "loops_at_once", lambda tree, same: frozenset())
    np.testing.assert_array_equal(together, result(func))


@pytest.mark.parametrize("name", TOGETHER)
def test_some_loop_runs_at_once(name):
    assert loops_at_once(ast.parse(TOGETHER[name].format(kind="range")), {})


@pytest.mark.parametrize("name", APART)
def test_what_shares_an_element_runs_one_by_one(name):
    assert not loops_at_once(ast.parse(APART[name]), {})


def test_an_output_in_the_memory_of_an_input_is_the_same_memory():
    body = "for j in range(39):\n    Y[0, j + 1] = A[0, j]"
    assert loops_at_once(ast.parse(body), {})
    assert not loops_at_once(ast.parse(body), {"Y": "A"})
    got = run_func(function(body, '@in_place(Y="A")\n'), {}, {"A": A, "B": B, "P": P})["Y"]
    np.testing.assert_array_equal(got[0], np.repeat(A[0, 0], 40))


def test_an_index_outside_raises():
    for index in ("j + 1", "j - 1", "index(P[j]) - 1"):
        func = function(f"for j in range(40):\n    Y[0, j] = A[0, {index}]")
        with pytest.raises(IndexError):
            result(func)
