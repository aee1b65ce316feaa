"""Each pass does what its docstring shows, and changes no result."""

import re
import textwrap

import numpy as np
import pytest

from dlc.schedule.abstract_sizes import abstract_sizes
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import loops, substitute
from dlc.schedule.passes import hoist_guards as hoist_module
from dlc.schedule.passes import simplify_indices as simplify_module
from dlc.schedule.simplify import simplify_stmt
from dlc.schedule.text import parse_func
from dlc.te.expr import ZERO
from tests.schedule.data import inputs

MODULES = {"simplify_indices": simplify_module, "hoist_guards": hoist_module}


@pytest.mark.parametrize("name", MODULES)
def test_the_example_holds(name):
    module = MODULES[name]
    before, after = (
        textwrap.dedent(part).strip()
        for part in re.search(
            r"Before:\n(.*?)\n\nAfter:\n(.*?)\n\n\S", module.__doc__, re.DOTALL
        ).groups()
    )
    assert str(getattr(module, name)(parse_func(before))).strip() == after


def check(text, after, n=(0, 1, 5, 9)):
    func = parse_func(textwrap.dedent(text))
    done = simplify_module.simplify_indices(func)
    assert textwrap.dedent(after).strip() == str(done).strip()
    both = hoist_module.hoist_guards(done)
    for value in n:
        sizes = dict.fromkeys(func.sizes, value)
        arrays = inputs(func, sizes)
        for result in (done, both):
            got, want = run_func(result, sizes, arrays), run_func(func, sizes, arrays)
            for key in want:
                np.testing.assert_array_equal(got[key], want[key])


def test_a_limit_shortens_its_loop():
    check(
        """
        def f(A: f32[11], *, B: f32[11]):
            for io in range(2):
                for ii in range(8):
                    if io * 8 + ii < 11:
                        B[io * 8 + ii] = A[io * 8 + ii]
            for k in range(8):
                if k * 2 + 1 < 8 and k < 11:
                    B[k] = 3.0
        """,
        """
        def f(A: f32[11], *, B: f32[11]):
            for io in range(2):
                for ii in range(8):
                    if ii + io * 8 < 11:
                        B[ii + io * 8] = A[ii + io * 8]
            for k in range(4):
                B[k] = 3.0
        """,
    )


@pytest.mark.parametrize("kind", ["vectorize", "unroll"])
def test_a_limit_that_a_run_tells_shortens_no_loop_that_is_written_out(kind):
    text = f"""
        def f(n: size, A: f32[min(1, n) + 7], *, B: f32[min(1, n) + 7]):
            for i in {kind}(8):
                if i < min(1, n) + 7:
                    B[i] = A[i]
        """
    check(text, text)


def test_dead_code_goes():
    check(
        """
        def f(n: size, A: f32[n], *, B: f32[n]):
            for i in range(n):
                if i < 0:
                    B[i] = 7.0
                B[i] = (A[i] if i < n else 0.0)
                t = alloc(f32[2], "local")
                for j in range(2):
                    if n <= i:
                        t[j] = 0.0
        """,
        """
        def f(n: size, A: f32[n], *, B: f32[n]):
            for i in range(n):
                B[i] = A[i]
        """,
    )


def test_a_known_guard_is_not_tested_twice():
    check(
        """
        def f(n: size, A: f32[9], *, B: f32[9]):
            for i in range(9):
                B[i] = 0.0
                if i < n:
                    B[i] = A[i]
                    if i < n and 3 < n:
                        B[i] += A[i]
        """,
        """
        def f(n: size, A: f32[9], *, B: f32[9]):
            for i in range(9):
                B[i] = 0.0
                if i < n:
                    B[i] = A[i]
                    if 3 < n:
                        B[i] += A[i]
        """,
    )


def test_a_guard_that_loads_stays_in_its_loop():
    func = parse_func(
        textwrap.dedent("""
        def f(A: f32[4], *, B: f32[1]):
            B[0] = 0.0
            for i in range(4):
                if B[0] < 2.0:
                    B[0] += A[i]
        """)
    )
    assert hoist_module.hoist_guards(func) == func


def test_a_guard_of_all_statements_moves_out():
    func = parse_func(
        textwrap.dedent("""
        def f(n: size, A: f32[8], *, B: f32[8], C: f32[8]):
            for i in range(8):
                if n < 5 and i < 7:
                    B[i] = A[i]
                if n < 5:
                    C[i] = A[i]
        """)
    )
    want = textwrap.dedent("""
        def f(n: size, A: f32[8], *, B: f32[8], C: f32[8]):
            if n < 5:
                for i in range(8):
                    if i < 7:
                        B[i] = A[i]
                    C[i] = A[i]
        """)
    assert str(hoist_module.hoist_guards(func)).strip() == want.strip()


def test_what_is_simple_stays_the_very_same_object():
    func = parse_func(
        textwrap.dedent("""
            def f(n: size, A: f32[n + 1], *, B: f32[n]):
                t = alloc(f32[n + 1], "local")
                for i in range(n + 1):
                    if i * i < n:
                        t[i] = A[i]
                for j in range(n):
                    B[j] = t[j] + t[j + 1]
        """)
    )
    assert simplify_stmt(func.body, {}, drop=True) is func.body
    assert substitute(func.body, {"k": ZERO}) is func.body
    changed = substitute(func.body, {"i": ZERO})
    assert loops(changed)["i"] is not loops(func.body)["i"]
    assert loops(changed)["j"] is loops(func.body)["j"]


QUOTIENT = """
def f(m: size, n: size, *, out: f32[max(-((-m - n) // (m + 1)), 0)]):
    for i in range(max(-((-m - n) // (m + 1)), 0)):
        out[i] = 1.0
"""


def test_only_a_quotient_that_cannot_be_negative_is_named_as_a_size():
    func, values = abstract_sizes(parse_func(QUOTIENT))
    assert list(map(str, values)) == ["m", "n"]
    assert run_func(func, {"m": 3, "n": 6}, {})["out"].shape == (3,)
    strided = QUOTIENT.replace("max(-((-m - n) // (m + 1)), 0)", "(n - 1) // 2")
    assert list(map(str, abstract_sizes(parse_func(strided))[1])) == ["n", "(n + 1) // 2"]
