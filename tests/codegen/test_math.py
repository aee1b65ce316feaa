"""Elementary functions against exact arithmetic: errors in ULP, special values, lane counts."""

from __future__ import annotations

import math
import re

import mpmath as mp
import numpy as np
import pytest

from dlc.codegen.llvm import coefficients
from tests.codegen.jit import TARGETS, Kernel

FUNCTIONS = {
    "exp": mp.exp, "log": mp.log, "tanh": mp.tanh, "erf": mp.erf, "sin": mp.sin, "cos": mp.cos,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)), "log1p": mp.log1p, "sqrt": mp.sqrt,
    "normcdf": mp.ncdf,
}  # fmt: skip
# Largest errors in ULP; the measured ones stand in dlc/codegen/llvm/math.py.
LIMITS = {
    "exp": 0.9, "log": 0.8, "tanh": 3.0, "erf": 1.5, "sin": 1.5, "cos": 1.5, "sigmoid": 2.6,
    "log1p": 0.9, "sqrt": 0.51, "normcdf": 2.4, "exp baseline": 1.0, "tanh baseline": 3.1,
    "exp without denormals": 1.0, "normcdf baseline": 3.1, "sin f64 baseline": 2.3,
    "cos f64 baseline": 2.3,
}  # fmt: skip
NUMPY: dict[str, type[np.floating]] = {"f32": np.float32, "f64": np.float64}


def kernel(expr: str, dtype: str, lanes: int, target: str, inputs: str = "A") -> Kernel:
    params = ", ".join(f"{name}: {dtype}[n, {lanes}]" for name in inputs)
    return Kernel(
        f"""
def f(n: size, {params}, *, Z: {dtype}[n, {lanes}]):
    for i in range(n):
        for l in vectorize({lanes}):
            Z[i, l] = {expr}
""",
        TARGETS[target],
    )


def apply(k: Kernel, lanes: int, **inputs: np.ndarray) -> np.ndarray:
    """The kernel on as many numbers as wanted; what fills the last vector is dropped."""
    count = len(next(iter(inputs.values())))
    rows = -(-count // lanes)
    arrays = {name: np.resize(x, (rows, lanes)) for name, x in inputs.items()}
    return k({"n": rows}, arrays)["Z"].reshape(-1)[:count]


def ulp_errors(got: np.ndarray, exact: list, dtype: str) -> np.ndarray:
    """Distances from the exact values, in units in the last place of the exact value."""
    errors = []
    digits, lowest = (24, -149) if dtype == "f32" else (53, -1074)
    for value, want in zip(got.tolist(), exact, strict=True):
        exponent = int(mp.floor(mp.log(abs(want), 2))) if want else -9999
        ulp = mp.mpf(2) ** max(exponent - digits + 1, lowest)
        errors.append(float(abs(mp.mpf(value) - want) / ulp))
    return np.array(errors)


def samples(name: str, dtype: str, target: str = "native") -> np.ndarray:
    """Arguments of all sizes, where the function is finite, dense where it is hard."""
    rng = np.random.default_rng(1)
    kind = NUMPY[dtype]
    low: float
    high: float
    if name in ("log", "sqrt"):
        low, high = np.log2(float(np.finfo(kind).smallest_subnormal)) + 1, np.finfo(kind).maxexp - 1
        parts = [2.0 ** rng.uniform(low, high, 1500), rng.uniform(0.5, 2, 1500)]
    elif name == "log1p":
        top = np.finfo(kind).maxexp - 1
        parts = [2.0 ** rng.uniform(-40, top, 1500), -(2.0 ** rng.uniform(-40, -1e-3, 1500)),
                 rng.uniform(-0.5, 3, 1500)]  # fmt: skip
    elif name in ("sin", "cos"):
        top = 127 if dtype == "f32" else 1023
        parts = [2.0 ** rng.uniform(-30, top, 1500), rng.uniform(-8, 8, 1500),
                 np.arange(1, 800) * (math.pi / 2), 2.0 ** rng.uniform(15, 35, 800),
                 [6381956970095103.0 * 2.0**797 if dtype == "f64" else 16367173 * 2.0**72],
                 [-(2.0**p) for p in (17, 19, 20, 29, 30, 31, 63, 64, top)]]  # fmt: skip
    elif name == "exp":
        low, high = (-103, 88.7) if dtype == "f32" else (-744, 709.7)
        parts = [rng.uniform(low, high, 1500), rng.standard_normal(1500)]
    else:
        wide = 100 if dtype == "f32" else 700
        parts = [rng.uniform(-6, 6, 2000), 2.0 ** rng.uniform(-40, 2, 800),
                 rng.uniform(-wide, wide, 400)]  # fmt: skip
    return np.concatenate(parts).astype(kind)


def has_power(dtype: str, target: str) -> bool:
    """Whether a share of the normal distribution is computed by a power of two."""
    return dtype == "f32" and "fma" in TARGETS[target].features


@pytest.mark.parametrize("target", ["native", "avx2", "baseline"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_errors_stay_below_the_stated_ulp(name, dtype, target):
    lanes = {"native": 16, "avx2": 8, "baseline": 1}[target]
    x = samples(name, dtype, target)
    if name == "normcdf" and has_power(dtype, target):
        pytest.skip("the test of powers judges it: its error grows with the power")
    got = apply(kernel(f"{name}(A[i, l])", dtype, lanes, target), lanes, A=x)
    with mp.workdps(60):
        exact = [FUNCTIONS[name](mp.mpf(v)) for v in x.tolist()]
        errors = ulp_errors(got, exact, dtype)
    worst = int(errors.argmax())
    kinds = (f"{name} {dtype} {target}", f"{name} {target}", name)
    limit = next(LIMITS[kind] for kind in kinds if kind in LIMITS)
    assert errors[worst] <= limit, (x[worst], got[worst], exact[worst])


@pytest.mark.parametrize("lanes", [1, 3, 4, 16, 32])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_special_values(dtype, lanes):
    inf, nan = math.inf, math.nan
    table = {
        "exp": [
            (inf, inf),
            (-inf, 0.0),
            (1000.0, inf),
            (-1000.0, 0.0),
            (-3e38, 0.0),
            (0.0, 1.0),
            (nan, nan),
        ],
        "log": [
            (0.0, -inf),
            (-0.0, -inf),
            (-1.0, nan),
            (-inf, nan),
            (inf, inf),
            (1.0, 0.0),
            (nan, nan),
        ],
        "log1p": [
            (0.0, 0.0),
            (-0.0, -0.0),
            (1e-40, 1e-40),
            (-1.0, -inf),
            (-2.0, nan),
            (-inf, nan),
            (inf, inf),
            (nan, nan),
        ],
        "tanh": [(inf, 1.0), (-inf, -1.0), (0.0, 0.0), (-0.0, -0.0), (50.0, 1.0), (nan, nan)],
        "normcdf": [(inf, 1.0), (-inf, 0.0), (-40.0, 0.0), (nan, nan)],
        "erf": [(inf, 1.0), (-inf, -1.0), (0.0, 0.0), (-0.0, -0.0), (9.0, 1.0), (nan, nan)],
        "sigmoid": [(inf, 1.0), (-inf, 0.0), (-1e4, 0.0), (0.0, 0.5), (60.0, 1.0), (nan, nan)],
        "sin": [(inf, nan), (-inf, nan), (0.0, 0.0), (-0.0, -0.0), (nan, nan)],
        "cos": [(inf, nan), (-inf, nan), (0.0, 1.0), (nan, nan)],
        "floor": [(2.5, 2.0), (-2.5, -3.0), (-0.0, -0.0), (inf, inf), (1e30, 1e30), (nan, nan)],
        "ceil": [(2.5, 3.0), (-2.5, -2.0), (-0.5, -0.0), (-inf, -inf), (nan, nan)],
        "round": [(2.5, 2.0), (3.5, 4.0), (-0.5, -0.0), (inf, inf), (nan, nan), (0.49999997, 0.0)],
        "abs": [(-0.0, 0.0), (-inf, inf), (nan, nan)],
        "sqrt": [(-1.0, nan), (-0.0, -0.0), (inf, inf), (nan, nan)],
    }
    for target in ("native", "baseline"):
        for name, values in table.items():
            x = np.array([given for given, _ in values], NUMPY[dtype])
            want = np.array([result for _, result in values], NUMPY[dtype])
            got = apply(kernel(f"{name}(A[i, l])", dtype, lanes, target), lanes, A=x)
            np.testing.assert_array_equal(got, want, err_msg=f"{name} {target}")
            numbers = ~np.isnan(want)
            signs = np.signbit(got[numbers]) == np.signbit(want[numbers])
            assert signs.all(), (name, target)


@pytest.mark.parametrize("target", ["native", "avx2", "baseline"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_hyperbolic_tangent_is_odd_and_never_beyond_1(dtype, target):
    x = np.abs(samples("tanh", dtype, target))
    k = kernel("tanh(A[i, l])", dtype, 16, target)
    above, below = apply(k, 16, A=x), apply(k, 16, A=-x)
    np.testing.assert_array_equal(above, -below)
    far = 9.1 if dtype == "f32" else 19.1  # from where 1 is nearest
    assert (above[x >= far] == 1).all()
    assert (above <= 1).all()


@pytest.mark.parametrize("target", ["native", "avx2", "baseline"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_an_exponential_without_denormals_needs_no_test_of_its_own(dtype, target):
    kind = NUMPY[dtype]
    edge = np.log(np.finfo(kind).tiny.astype(np.longdouble)).astype(kind)
    ulps = np.arange(-8, 9) * np.spacing(edge)
    x = np.concatenate([edge + ulps, [-1e30, -700, -90, 0, 1, 80, 1e30, np.inf, -np.inf, np.nan]])
    x = x.astype(kind)
    fused = kernel("flush(exp(A[i, l]))", dtype, 16, target)
    plain = apply(kernel("exp(A[i, l])", dtype, 16, target), 16, A=x)
    plain[np.abs(plain) < np.finfo(kind).tiny] = 0
    np.testing.assert_array_equal(apply(fused, 16, A=x), plain)
    assert "copysign" not in fused.ir


@pytest.mark.parametrize("target", ["native", "avx2"])
def test_exponentials_without_denormals_are_right_up_to_the_largest_number(target):
    top = np.float32(128 * math.log(2))  # rounded up: infinite
    rng = np.random.default_rng(2)
    x = np.concatenate([rng.uniform(-87.3, 88.3, 2000), rng.uniform(88.3, 88.7228, 2000)])
    k = kernel("flush(exp(A[i, l]))", "f32", 16, target)
    x = np.append(x.astype(np.float32), np.nextafter(top, np.float32(0)))
    errors = ulp_errors(apply(k, 16, A=x), [mp.exp(mp.mpf(v)) for v in x.tolist()], "f32")
    assert errors[x < 88.37].max() <= LIMITS["exp"]
    assert errors.max() <= LIMITS["exp without denormals"]
    beyond = np.float32([top, 89.0, 89.5, 700.0, 3e38])
    assert np.isinf(apply(k, 16, A=beyond)).all()


def test_functions_made_of_an_exponential_are_few_operations():
    """They take the time that their operations do: those of other elements hide the latency."""
    scaled_at_once = "avx512f" in TARGETS["native"].features
    for name, most in (("exp", 10 if scaled_at_once else 12), ("tanh", 12), ("sigmoid", 11)):
        ir = kernel(f"{name}(A[i, l])", "f32", 16, "native").ir
        found = re.findall(r"call <16 x float> @llvm.fma|= f(?:add|sub|mul) ", ir)
        assert len(found) <= most, name


@pytest.mark.parametrize("target", ["native", "avx2"])
def test_a_probability_by_a_power_loses_digits_where_little_is_left(target):
    if not has_power("f32", target):
        pytest.skip("this machine has no FMA")
    k = kernel("normcdf(A[i, l])", "f32", 16, target)
    x = np.concatenate([samples("normcdf", "f32", target), np.linspace(-14, 0, 5000)])
    x = x.astype(np.float32)
    got = apply(k, 16, A=x)
    exact = [mp.ncdf(v) for v in x.tolist()]
    is_fit = x >= -coefficients.POWER_NORMCDF_LIMIT
    fitted = [p for p, near in zip(exact, is_fit, strict=True) if near]
    errors = ulp_errors(got[is_fit], fitted, "f32")
    assert (errors <= 4 + 2 * np.minimum(x[is_fit], 0) ** 2).all()
    assert np.abs(got - np.array(exact, np.float64)).max() < 2.0**-23
    assert ((got[~is_fit] >= 0) & (got[~is_fit] < 2.0**-29)).all()
    assert (got[x < -13] == 0).all()
    assert len(re.findall(r"call <16 x float> @llvm.fma|= fmul ", k.ir)) <= 17


@pytest.mark.parametrize("target", ["native", "baseline"])
def test_the_short_probability_is_right_to_19_bits(target):
    x = samples("normcdf", "f32", target)
    x = np.concatenate([x, np.float32([4.75, -4.75, 4.7499, -4.7499, 1e30, -1e30, np.inf])])
    got = apply(kernel("normcdf_short(A[i, l])", "f32", 16, target), 16, A=x)
    exact = np.array([float(mp.ncdf(v)) for v in x.tolist()])
    assert np.abs(got - exact).max() < 2.0**-19
    assert (got[x <= -4.75] == 0).all()
    one = apply(kernel("normcdf_short(A[i, l])", "f32", 1, target), 1, A=np.float32([np.nan]))
    assert np.isnan(one).all()


@pytest.mark.parametrize("target", ["native", "baseline"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_power(dtype, target):
    rng = np.random.default_rng(2)
    x = np.abs(rng.standard_normal(2000) * 5).astype(NUMPY[dtype])
    y = (rng.standard_normal(2000) * 8).astype(NUMPY[dtype])
    got = apply(kernel("A[i, l] ** B[i, l]", dtype, 16, target, "AB"), 16, A=x, B=y)
    with mp.workdps(60):
        pairs = zip(x.tolist(), y.tolist(), strict=True)
        exact = [mp.power(mp.mpf(a), mp.mpf(b)) for a, b in pairs]
        errors = ulp_errors(got, exact, dtype)
    assert errors.max() <= (0.6 if dtype == "f32" else 1.1)


@pytest.mark.parametrize("target", ["native", "baseline"])
def test_powers_of_float64_that_are_huge_or_tiny(target):
    rng = np.random.default_rng(5)
    size = 2.0 ** rng.uniform(-1073, 1023, 1500)
    x = np.concatenate(
        [size, 1 + rng.uniform(-1e-3, 1e-3, 500), 1 + 2.0 ** rng.uniform(-52, -9, 300)]
    )
    y = rng.uniform(-745, 709, len(x)) / np.log(x)
    fits = np.isfinite(y)
    x, y = x[fits], y[fits]
    got = apply(kernel("A[i, l] ** B[i, l]", "f64", 16, target, "AB"), 16, A=x, B=y)
    with mp.workdps(60):
        exact = [
            mp.power(mp.mpf(a), mp.mpf(b)) for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
        errors = ulp_errors(got, exact, "f64")
    worst = int(errors.argmax())
    assert errors[worst] <= 1.1, (x[worst], y[worst], got[worst], exact[worst])


@pytest.mark.parametrize("target", ["native", "baseline"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_power_of_special_values_is_numpys(dtype, target):
    edge = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, math.inf, -math.inf, math.nan]
    x, y = (a.reshape(-1).astype(NUMPY[dtype]) for a in np.meshgrid(edge, edge))
    got = apply(kernel("A[i, l] ** B[i, l]", dtype, 8, target, "AB"), 8, A=x, B=y)
    with np.errstate(all="ignore"):
        want = np.power(x, y)
    np.testing.assert_allclose(got, want, rtol=1e-6)
    for exponent in (0.5, 1.0, 2.0, -1.0, 3.0):
        text = f"{dtype}({exponent})" if dtype == "f64" else str(exponent)
        got = apply(kernel(f"A[i, l] ** {text}", dtype, 8, target), 8, A=x)
        with np.errstate(all="ignore"):
            want = np.power(x, np.full_like(x, exponent))
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=str(exponent))


@pytest.mark.parametrize("lanes", [1, 8])
def test_only_unequal_holds_with_nan(lanes):
    x = np.array([1.0, math.nan, math.nan, 2.0, 2.0, -0.0, math.inf, 1.0], np.float32)
    y = np.array([math.nan, 1.0, math.nan, 2.0, 3.0, 0.0, math.inf, 0.0], np.float32)
    for sign, numpys in (
        ("==", np.equal), ("!=", np.not_equal), ("<", np.less), ("<=", np.less_equal),
    ):  # fmt: skip
        k = kernel(f"1.0 if A[i, l] {sign} B[i, l] else 0.0", "f32", lanes, "native", "AB")
        np.testing.assert_array_equal(apply(k, lanes, A=x, B=y), numpys(x, y), err_msg=sign)


def test_integer_power_wraps_as_numpy_does():
    rng = np.random.default_rng(3)
    k = kernel("A[i, l] ** B[i, l]", "i32", 8, "native", "AB")
    x = rng.integers(-9, 9, 800).astype(np.int32)
    y = rng.integers(0, 40, 800).astype(np.int32)
    np.testing.assert_array_equal(apply(k, 8, A=x, B=y), np.power(x, y))
    x, y = np.array([1, -1, -1, 2], np.int32), np.array([-3, -3, -2, -1], np.int32)
    minus = apply(k, 8, A=x, B=y)
    np.testing.assert_array_equal(minus, [1, -1, 1, 0])


def test_no_library_is_called():
    for target in TARGETS:
        for lanes in (1, 8):
            text = " + ".join(f"{name}(A[i, l])" for name in [*FUNCTIONS, "floor", "round", "ceil"])
            ir = kernel(text, "f32", lanes, target).ir
            called = {line.split("@")[1].split("(")[0] for line in ir.splitlines()
                      if line.startswith("declare")}  # fmt: skip
            assert all(name.startswith("llvm.") for name in called)


@pytest.mark.parametrize("target", ["native", "avx2"])
def test_remainders_of_huge_quotients_are_exact(target):
    x = np.array([1e30, -1e30, 3e38, 1e17, 7.5, 2.0**127, -5.0, 1e10], np.float32)
    y = np.array([1.3, 2.7, 1e-40, 0.9, 2, 3e-45, 3, 1.1], np.float32)
    got = apply(kernel("A[i, l] % B[i, l]", "f32", 8, target, "AB"), 8, A=x, B=y)
    np.testing.assert_array_equal(got, np.mod(x, y))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("target", ["native", "avx2"])
@pytest.mark.parametrize("lanes", [1, 8])
def test_rounding_to_bytes_takes_halves_to_the_even_number(dtype, target, lanes):
    short = dtype.replace("uint", "u").replace("int", "i")
    k = Kernel(
        f"""
def f(n: size, A: f32[n, {lanes}], *, C: {short}[n, {lanes}]):
    for i in range(n):
        for l in vectorize({lanes}):
            C[i, l] = {short}(round(A[i, l]))
""",
        TARGETS[target],
    )
    info = np.iinfo(dtype)
    near = [at + d for at in (info.min, info.max) for d in (-1.5, -0.5, -0.499, 0.0, 0.499, 0.5, 2)]
    x = np.array(
        [0.5, 1.5, 2.5, -0.5, -1.5, math.inf, -math.inf, 3e38, math.nan, *near], np.float32
    )
    x = np.resize(x, (24 // lanes, lanes))
    wanted = np.clip(np.round(np.nan_to_num(x)), info.min, info.max).astype(dtype)
    assert np.array_equal(k({"n": len(x)}, {"A": x})["C"], wanted)
    assert "lrint" in k.ir
