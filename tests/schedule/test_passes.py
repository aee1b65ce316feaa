"""Each pass does what its docstring shows, and changes no result."""

import re
import textwrap

import numpy as np
import pytest

from dlc.schedule.abstract_sizes import abstract_sizes
from dlc.schedule.interpret import evaluate_size, run_func
from dlc.schedule.loop import loops, substitute
from dlc.schedule.passes import hoist_guards as hoist_module
from dlc.schedule.passes import simplify_indices as simplify_module
from dlc.schedule.simplify import simplify_stmt
from dlc.schedule.text import parse_func
from dlc.te.expr import ZERO
from tests.schedule.data import assert_same, inputs, parse

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


FILLED = """
def f(b: size, MORE, A: f32[DIM], *, out: f32[b, TO]):
    for i in range(b):
        for j in range(TO):
            out[i, j] = BODY
"""


def named(dim, to=None, body="A[j]"):
    """What is passed for sizes, and the parameters, of a kernel; it computes what it did before."""
    more = "m: size, n: size" if "m" in dim.replace("max", "").replace("min", "") else "n: size"
    text = FILLED.replace("DIM", dim).replace("TO", to or dim).replace("BODY", body)
    func = parse_func(text.replace("MORE", more))
    done, values = abstract_sizes(func)
    sizes = {name: {"b": 2, "m": 3, "n": 47}[name] for name in func.sizes}
    passed = {
        name: evaluate_size(value, sizes) for name, value in zip(done.sizes, values, strict=True)
    }
    arrays = inputs(func, sizes)
    np.testing.assert_array_equal(
        run_func(done, passed, arrays)["out"], run_func(func, sizes, arrays)["out"]
    )
    return list(map(str, values)), [", ".join(map(str, b.type.shape)) for b in done.params]


@pytest.mark.parametrize(
    ("dim", "value"),
    [
        ("(n + 1) // 2", "(n + 1) // 2"),  # whatever else is a size: b
        ("n // 10 - 1", "n // 10 - 1"),  # the quotient is one more
        ("n - 2", "n - 2"),
        ("max(0, n - 2)", "max(0, n - 2)"),
        ("min(12, n)", "min(12, n)"),
        ("n * 2 - 1", "n * 2 - 1"),
        ("n // 4 * (n // 4) + min(1, n // 4)", "n // 4 * (n // 4) + min(1, n // 4)"),
        ("max(-((-m - n) // (m + 1)), 0)", "max(-((-m - n) // (m + 1)), 0)"),
    ],
)
def test_what_a_size_is_computed_from_is_named(dim, value):
    values, shapes = named(dim)
    assert values == ["b", value]
    assert shapes in (["s0", "b, s0"], ["s1", "b, s1"])


def test_sizes_that_are_computed_from_each_other_stay_so():
    assert named("n", "(n + 1) // 2") == (["b", "n"], ["n", "b, (n + 1) // 2"])
    assert named("n", "max(0, n - 1)") == (["b", "n"], ["n", "b, max(0, n - 1)"])
    assert named("n", "n - 2") == (["b", "n - 2"], ["s0 + 2", "b, s0"])
    assert named("n // 10 - 1", "(n // 10 - 1) * b", "1.0") == (
        ["b", "n // 10 - 1"],
        ["s0", "b, b * s0"],
    )
    assert named("max(0, n // 2 - 1)", "n // 2", "1.0") == (
        ["b", "n // 2"],
        ["max(0, s0 - 1)", "b, s0"],
    )


@pytest.mark.parametrize(
    ("to", "line"),
    [
        ("(n + 1) // 2 - 1", "s0 * 2 + s1 + 1"),  # windows of 3, 2 apart
        ("(n - 3) // 2 + 1", "s0 * 2 + s1 + 1"),
        ("n // 2 - 1", "s0 * 2 + s1 + 2"),
        ("n // 5 - 1", "s0 * 5 + s1 + 5"),
        ("(n - 8) // 3", "s0 * 3 + s1 + 8"),
    ],
)
def test_windows_that_fit_in_a_line_are_a_size(to, line):
    values, shapes = named("n", to, "A[j]")
    assert shapes == [line, "b, s0"]
    assert len(values) == 3


@pytest.mark.parametrize(
    ("dim", "to"),
    [
        ("n", "(n + 3) // 2 - 1"),  # not less than 0 anyway
        ("n + n // 3", "n // 2 - 1"),  # another quotient of the line
        ("n", "n // 2"),  # the same
        ("n + m", "(n + m) // 2 - 1"),
    ],
)
def test_other_quotients_of_a_line_are_none(dim, to):
    assert "n" in named(dim, to, "1.0")[0]


def test_what_all_sizes_are_computed_from_is_named():
    longer = "min(30, max(0, n // 10 - 3) + 1)"
    assert named("n // 10 - 1", longer, "1.0") == (
        ["b", "n // 10 - 1"],
        ["s0", "b, min(30, max(0, s0 - 2) + 1)"],
    )
    assert named("n // 4", "n // 3", "1.0") == (["b", "n // 4", "n // 3"], ["s0", "b, s1"])


def test_only_what_cannot_be_negative_is_named_as_a_size():
    dim = "b * 40 + -n // (m + 1)"  # a quotient of at most 0
    assert named(dim)[0] == ["b", "m", "n"]


@pytest.mark.parametrize("dim", ["max(0, n - 2)", "n // 10 - 1"])
def test_a_difference_is_no_size_of_a_kernel_that_reads_the_whole_otherwise(dim):
    values, _ = named(dim, body="A[j] if j < n - 3 else 0.0")
    assert "n" in values
    assert dim not in values


def passes(text):
    func = parse(text)
    result = hoist_module.hoist_guards(simplify_module.simplify_indices(func))
    assert_same(func, result)
    return str(result)


def test_a_condition_on_data_is_tested_again():
    text = """
        def f(A: f32[3], *, B: f32[1], C: f32[1]):
            B[0] = 1.0
            C[0] = 0.0
            if B[0] < 3.0:
                B[0] += 4.0
                if B[0] < 3.0:
                    C[0] = 5.0
    """
    assert passes(text).count("if B[0] < 3.0") == 2


def test_a_condition_on_data_stays_behind_its_guard():
    text = """
        def f(n: size, A: f32[3], *, B: f32[9]):
            for i in range(9):
                B[i] = 0.0
                if i < 3:
                    if A[i] < 3.0:
                        B[i] = A[i]
    """
    assert " and " not in passes(text)


def test_statements_that_change_a_condition_keep_their_own():
    text = """
        def f(A: f32[3], *, B: f32[1], C: f32[1]):
            B[0] = 1.0
            C[0] = 0.0
            for i in range(3):
                if B[0] < 2.0:
                    B[0] += A[i]
                if B[0] < 2.0:
                    C[0] += A[i]
    """
    assert passes(text).count("if B[0] < 2.0") == 2


def test_a_condition_on_a_buffer_stays_inside_its_life():
    text = """
        def f(A: f32[3], *, B: f32[3]):
            t = alloc(f32[1], "local")
            if t[0] < 3.0:
                B[0] = A[0]
    """
    assert hoist_module.hoist_guards(parse(text)) == parse(text)


def test_a_limit_that_may_be_negative_stays_a_guard():
    text = """
        def f(n: size, A: f32[n], *, B: f32[n]):
            for q in range(n):
                B[q] = 0.0
            for i in range(n):
                if i < n - 4:
                    B[i] = A[i]
    """
    assert "if i < n - 4" in passes(text)


def test_a_lower_limit_stays_a_guard():
    text = """
        def f(A: f32[6], *, B: f32[6]):
            for q in range(6):
                B[q] = 0.0
            for i in range(6):
                if 2 < i:
                    B[i] = A[i]
    """
    assert "for i in range(6):\n        if 2 < i" in passes(text)
