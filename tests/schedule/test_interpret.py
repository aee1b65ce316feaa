"""The oracle is strict: bounds, order, poison, rounding."""

import numpy as np
import pytest

from dlc.core.errors import InputError
from dlc.schedule.interpret import run_func
from tests.schedule.data import FULL, parse

X = np.array([1.5, -2.5, np.nan, 0.0], np.float32)


def run(text, n=0, **arrays):
    func = parse(text)
    return run_func(func, dict.fromkeys(func.sizes, n), arrays)


def unary(body, x=X, out="f32"):
    text = f"""
        def f(A: f32[4], *, B: {out}[4]):
            for i in range(4):
                B[i] = {body}
    """
    return run(text, A=x)["B"]


def test_an_index_outside_raises():
    for body in ("A[i + 1]", "A[i - 1]"):
        with pytest.raises(IndexError):
            unary(body)
    with pytest.raises(IndexError):
        run("def f(A: f32[4], *, B: f32[4]):\n    B[0 - 1] = 0.0\n", A=X)
    with pytest.raises(IndexError):
        run("def f(A: f32[4], *, B: f32[2, 3]):\n    B[1, 3] = 0.0\n", A=X)


def test_a_choice_guards_a_load():
    np.testing.assert_array_equal(
        unary("(A[i - 1] if 0 < i else 7.0)"), np.array([7.0, 1.5, -2.5, np.nan], np.float32)
    )


def test_and_does_not_guard_a_load():
    with pytest.raises(IndexError):
        unary("(1.0 if 0 < i and A[i - 1] < 1.0 else 7.0)")


def test_undefined_elements_are_poison():
    text = """
        def f(A: f32[4], *, B: f32[4], C: i32[2]):
            t = alloc(i32[2], "local")
            C[0] = t[1]
    """
    got = run(text, A=X)
    assert np.isnan(got["B"]).all()
    assert got["C"][0] == 0x5A5A5A5A


def test_loops_without_an_order_are_shuffled():
    text = """
        def f(A: f32[4], *, B: f32[1]):
            for i in parallel(100):
                B[0] = f32(i)
    """
    func = parse(text)
    last = {float(run_func(func, {}, {"A": X}, seed)["B"][0]) for seed in range(4)}
    assert len(last) > 1
    for word in ("range", "unroll"):
        ordered = parse(text.replace("parallel", word))
        assert run_func(ordered, {}, {"A": X})["B"][0] == 99
    lanes = parse(text.replace("parallel", "vectorize"))
    assert run_func(lanes, {}, {"A": X})["B"][0] != 99


def test_each_operation_rounds_to_its_type():
    x = np.full(4, 16777216.0, np.float32)
    np.testing.assert_array_equal(unary("A[i] + 1.0 + 1.0", x), x)
    np.testing.assert_array_equal(
        unary("A[i] + (0.1 + 0.2)", x * 0), np.float32(0.1) + np.float32(0.2) + x * 0
    )
    assert unary("f64(0.1)", out="f64")[0] == 0.1
    assert unary("f64(-0.1)", out="f64")[0] == -0.1


def test_the_larger_of_nan_is_nan():
    np.testing.assert_array_equal(
        unary("max(A[i], 0.0)"), np.array([1.5, 0, np.nan, 0], np.float32)
    )
    np.testing.assert_array_equal(
        unary("min(A[i], 0.0)"), np.array([0, -2.5, np.nan, 0], np.float32)
    )


def test_casts_truncate_and_saturate():
    x = np.array([1e20, -1e20, np.nan, -1.7], np.float32)
    np.testing.assert_array_equal(
        unary("i32(A[i])", x, "i32"), np.array([2**31 - 1, -(2**31), 0, -1])
    )
    np.testing.assert_array_equal(unary("u8(A[i])", x, "u8"), np.array([255, 0, 0, 0]))
    np.testing.assert_array_equal(unary("bool(A[i])", X, "bool"), [True, True, True, False])
    x = np.array([np.inf, -np.inf, 300.0, 2.0], np.float32)
    np.testing.assert_array_equal(unary("i8(A[i])", x, "i8"), np.array([127, -128, 127, 2]))


def test_integers_wrap():
    text = """
        def f(A: i8[2], *, B: i8[2], C: i8[2], D: f32[2]):
            for i in range(2):
                B[i] = A[i] + i8(100)
                C[i] = i8(i32(A[i]) * i32(3))
                D[i] = f32(i * 2)
    """
    got = run(text, A=np.array([100, -100], np.int8))
    np.testing.assert_array_equal(got["B"], np.array([-56, 0], np.int8))
    np.testing.assert_array_equal(got["C"], np.array([44, -44], np.int8))
    np.testing.assert_array_equal(got["D"], np.array([0, 2], np.float32))


def test_integers_are_divided_toward_zero():
    text = """
def f(A: i32[6], B: i32[6], *, C: i32[6], D: i32[6]):
    for i in range(6):
        C[i] = A[i] / B[i]
        D[i] = A[i] // B[i]
"""
    a, b = np.array([7, -7, 7, -7, 6, -(2**31)]), np.array([2, 2, -2, -2, -3, -1])
    with np.errstate(over="ignore"):
        found = run_func(parse(text), {}, {"A": a.astype(np.int32), "B": b.astype(np.int32)})
    np.testing.assert_array_equal(found["C"], [3, -3, -3, 3, -2, -(2**31)])
    np.testing.assert_array_equal(found["D"], [3, -4, -4, 3, -2, -(2**31)])


def test_functions_of_one_operand():
    x = np.array([0.25, 1.0, 2.5, 0.5], np.float32)
    with np.errstate(all="ignore"):
        for name, fn in (("exp", np.exp), ("log", np.log), ("sqrt", np.sqrt), ("tanh", np.tanh),
                         ("sin", np.sin), ("cos", np.cos), ("floor", np.floor),
                         ("ceil", np.ceil), ("round", np.rint), ("abs", np.abs)):  # fmt: skip
            want = fn(x.astype(np.float64)).astype(np.float32)
            np.testing.assert_array_equal(unary(f"{name}(A[i])", x), want, err_msg=name)
    np.testing.assert_allclose(unary("sigmoid(A[i])", x), 1 / (1 + np.exp(-x)), rtol=1e-6)
    np.testing.assert_allclose(unary("erf(A[i])", x)[1], 0.8427008, rtol=1e-6)
    np.testing.assert_array_equal(unary("isnan(A[i])", X, "bool"), [False, False, True, False])


def test_an_output_may_share_the_memory_of_an_input():
    text = """
        @in_place(B="A")
        def f(A: f32[4], *, B: f32[4]):
            B[0] = 9.0
            B[1] = A[0]
    """
    x = X.copy()
    got = run(text, A=x)["B"]
    np.testing.assert_array_equal(got, np.array([9.0, 9.0, np.nan, 0.0], np.float32))
    np.testing.assert_array_equal(x, X)


def test_sizes_may_be_zero():
    func = parse(FULL)
    empty = np.zeros((0, 8), np.float32)
    assert run_func(func, {"n": 0}, {"A": empty, "W": np.float32(1)})["B"].shape == (0, 8)


def test_an_instruction_does_what_it_means():
    text = """
        def f(a: u8[2, 4], b: i8[4], *, c: i32[2]):
            for i in range(2):
                c[i] = i32(1)
                invoke("dot_4xi8_i32", a[i, 0], b[0], c[i])
    """
    a, b = np.arange(8, dtype=np.uint8).reshape(2, 4), np.array([1, -2, 3, 4], np.int8)
    want = 1 + (a.astype(int) * b).sum(1)
    np.testing.assert_array_equal(run(text, a=a, b=b)["c"], want)
    with pytest.raises(IndexError):
        run(text.replace("b[0]", "b[1]"), a=a, b=b)


def test_wrong_inputs_are_named():
    func = parse("def f(n: size, A: f32[n], *, B: f32[n]):\n    B[0] = A[0]\n")
    with pytest.raises(InputError, match="'n'"):
        run_func(func, {}, {"A": X})
    with pytest.raises(InputError, match=r"'A'.*missing"):
        run_func(func, {"n": 4}, {})
    with pytest.raises(InputError, match=r"float32\[4\] given, float32\[3\] declared"):
        run_func(func, {"n": 3}, {"A": X})
    with pytest.raises(InputError, match="float64"):
        run_func(func, {"n": 4}, {"A": X.astype(np.float64)})


def test_bf16_rounds():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    text = """
        def f(A: bf16[2], *, B: bf16[2], C: f32[2]):
            for i in range(2):
                B[i] = A[i] * bf16(1.5)
                C[i] = f32(A[i])
    """
    a = np.array([1.0, 3.140625], ml_dtypes.bfloat16)
    got = run(text, A=a)
    np.testing.assert_array_equal(got["B"], a * ml_dtypes.bfloat16(1.5))
    np.testing.assert_array_equal(got["C"], a.astype(np.float32))


def test_a_function_may_be_called_as_a_word_of_the_text():
    text = """
        def range(*, B: f32[3]):
            for i in range(3):
                B[i] = f32(i)
    """
    np.testing.assert_array_equal(run(text)["B"], np.arange(3, dtype=np.float32))
