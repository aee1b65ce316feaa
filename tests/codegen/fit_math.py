"""How the polynomials of dlc/codegen/llvm/coefficients.py were found: Remez exchange in mpmath.

Run:  python tests/codegen/fit_math.py
prints every table. Errors are relative to the function's result, except for `LOG_ERFC`, where the
error is that of `1 - exp(p)`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import mpmath as mp

from dlc.codegen.llvm.coefficients import (
    NORMCDF_SHORT_LIMIT,
    NORMCDF_SLOPE,
    POWER_NORMCDF_LIMIT,
)

mp.mp.dps = 50
Function = Callable[[Any], Any]


def remez(f: Function, weight: Function, low: float, high: float, degree: int) -> tuple[Any, Any]:
    """The polynomial p that minimises max |p - f| * weight on [low, high], and that maximum."""
    count = degree + 2
    middle, half = (mp.mpf(low) + high) / 2, (mp.mpf(high) - low) / 2
    points = [middle - half * mp.cos(mp.pi * (2 * i + 1) / (2 * count)) for i in range(count)]
    grid = [middle - half * mp.cos(mp.pi * i / (40 * count)) for i in range(40 * count + 1)]
    values = [(x, f(x), weight(x)) for x in grid]
    for _ in range(12):
        rows = [
            [x**n for n in range(degree + 1)] + [(-1) ** i / weight(x)]
            for i, x in enumerate(points)
        ]
        found = mp.lu_solve(mp.matrix(rows), mp.matrix([f(x) for x in points]))
        p = [found[n] for n in range(degree + 1)]
        errors = [(_at(p, x) - y) * w for x, y, w in values]
        points = _extremes(grid, errors, count)
    return p, max(abs(e) for e in errors)


def _at(p: list[Any], x: Any) -> Any:
    """A polynomial's value; mpmath's own `polyval` has changed the order of its coefficients."""
    return functools.reduce(lambda total, c: total * x + c, reversed(p))


def _extremes(grid: list[Any], errors: list[Any], count: int) -> list[Any]:
    """The largest error of each run of one sign, thinned to `count` alternating points."""
    best: list[tuple[Any, Any]] = []
    for x, e in zip(grid, errors, strict=True):
        if best and (best[-1][1] > 0) == (e > 0):
            if abs(e) > abs(best[-1][1]):
                best[-1] = (x, e)
        else:
            best.append((x, e))
    while len(best) > count:
        best.pop(0 if abs(best[0][1]) < abs(best[-1][1]) else -1)
    assert len(best) == count, "the error does not alternate: ask for a lower degree"
    return [x for x, _ in best]


def normcdf(slope: float, limit: float, degree: int) -> tuple[Any, Any]:
    """normcdf(-y) * exp(y * y / 2) / t by powers of t - 1/2, where t = 1 / (1 + slope * y)."""

    def of(moved: Any) -> Any:
        t = moved + mp.mpf(1) / 2
        y = (1 / t - 1) / mp.mpf(slope)
        return mp.exp(y * y / 2) * mp.erfc(y / mp.sqrt(2)) / 2 / t

    half = mp.mpf(1) / 2
    lowest = 1 / (1 + mp.mpf(slope) * mp.mpf(limit))
    return remez(of, lambda moved: 1 / of(moved), lowest - half, half, degree)


def power_normcdf(limit: float, degree: int) -> tuple[Any, Any]:
    """(log2(normcdf(-y)) + 1) / y by powers of y; the error is allowed to grow as the power does.

    Rounding does so, too.
    """

    def of(y: Any) -> Any:
        return (mp.log(2 * mp.ncdf(-y), 2)) / y if y else -mp.sqrt(2 / mp.pi) / mp.log(2)

    def weight(y: Any) -> Any:
        return (y + mp.mpf("1e-3")) * mp.log(2) / (1 + y * y / 2)

    p, error = remez(of, weight, 0, limit, degree - 1)
    return [mp.mpf(-1), *p], error


def normcdf_short(limit: float, degree: int) -> tuple[Any, Any]:
    """(normcdf(y) - 1/2) / y up to a limit, in 2 (y / limit)**2 - 1."""

    def size(s: Any) -> Any:
        return mp.sqrt((s + 1) / 2) * mp.mpf(limit) + mp.mpf(10) ** -9

    def of(s: Any) -> Any:
        return mp.erf(size(s) / mp.sqrt(2)) / 2 / size(s)

    return remez(of, size, -1, 1, degree)


def tables() -> dict[str, tuple[Any, Any]]:
    """Every table: its coefficients, constant first, and its largest error."""
    ln2, eps, half = mp.log(2) / 2 * mp.mpf("1.01"), mp.mpf("1e-3"), mp.mpf("0.505")

    def q_exp(r: Any) -> Any:
        return (
            mp.nsum(lambda n: r**n / mp.factorial(n + 2), [0, 30])
            if abs(r) < 1e-2
            else (mp.expm1(r) - r) / r**2
        )

    def q_exp2(r: Any) -> Any:
        return mp.expm1(r * mp.log(2)) / r if r else mp.log(2)

    def log_tail(f: Any) -> Any:
        if abs(f) < 1e-3:
            return sum((-1) ** n * f**n / (n + 3) for n in range(12))
        return (mp.log1p(f) - f + f * f / 2) / f**3

    def log_odd(z: Any) -> Any:  # log((1 + s) / (1 - s)) = 2 s + s R(s * s)
        return sum(2 * z**n / (2 * n + 1) for n in range(1, 40)) / z if z else mp.mpf(2) / 3

    def sin_tail(z: Any) -> Any:
        return sum((-1) ** (n + 1) * z**n / mp.factorial(2 * n + 3) for n in range(14))

    def cos_tail(z: Any) -> Any:
        return sum((-1) ** n * z**n / mp.factorial(2 * n + 4) for n in range(14))

    def erf_even(z: Any) -> Any:
        return (
            2
            / mp.sqrt(mp.pi)
            * sum((-1) ** n * z**n / (mp.factorial(n) * (2 * n + 1)) for n in range(40))
        )

    def log_erfc(x: Any) -> Any:
        return mp.log(mp.erfc(x))

    low, high = mp.sqrt(mp.mpf(1) / 2) - 1, mp.sqrt(2) - 1
    s2, quarter = mp.mpf("0.0296"), (mp.pi / 4 * mp.mpf("1.02")) ** 2
    return {
        "EXP_F32": remez(q_exp, lambda r: (r * r + eps**2) / mp.exp(r), -ln2, ln2, 4),
        "EXP_WIDE_F32": remez(q_exp, lambda r: (r * r + eps**2) / mp.exp(r), -ln2, 2 * ln2, 5),
        "EXP2_F32": remez(q_exp2, lambda r: (abs(r) + eps) / 2**r, -half, half, 5),
        "EXP_F64": remez(q_exp, lambda r: (r * r + eps**2) / mp.exp(r), -ln2, ln2, 10),
        "LOG_F32": remez(log_tail, lambda f: abs(f**3 / mp.log1p(f)) + eps, low, high, 7),
        "LOG_F64": remez(log_odd, lambda z: z + eps, 0, s2, 6),
        "SIN_F32": remez(sin_tail, lambda z: z + eps, 0, quarter, 2),
        "SIN_F64": remez(sin_tail, lambda z: z + eps, 0, quarter, 5),
        "COS_F32": remez(cos_tail, lambda z: z * z + eps, 0, quarter, 2),
        "COS_F64": remez(cos_tail, lambda z: z * z + eps, 0, quarter, 5),
        "ERF_F32": remez(erf_even, lambda z: 1 / erf_even(z), 0, 1, 6),
        "ERF_F64": remez(erf_even, lambda z: 1 / erf_even(z), 0, 1, 13),
        "NORMCDF_F32": normcdf(NORMCDF_SLOPE["float"], 14.4, 9),
        "NORMCDF_F64": normcdf(NORMCDF_SLOPE["double"], 38.7, 24),
        "POWER_NORMCDF_F32": power_normcdf(POWER_NORMCDF_LIMIT, 10),
        "NORMCDF_SHORT": normcdf_short(NORMCDF_SHORT_LIMIT, 10),
        "LOG_ERFC_F32": remez(log_erfc, mp.erfc, 0.98, 4, 6),
        "LOG_ERFC_F64": remez(log_erfc, mp.erfc, 0.98, 6, 21),
    }


def main() -> None:
    """Write the tables as Python."""
    for name, (coefficients, error) in tables().items():
        numbers = "".join(f"    {float(c)!r},\n" for c in coefficients)
        sys.stdout.write(
            f"# largest error 2**{float(mp.log(error, 2)):.1f}\n{name} = (\n{numbers})\n"
        )


if __name__ == "__main__":
    main()
