"""The table of accuracies: its values, its units, and a function that meets its aim."""

from __future__ import annotations

import numpy as np

from benchmarks import ulp


def test_values_are_in_range_and_of_both_signs():
    found = np.concatenate(list(ulp.values(-2.0, 3.0, 100_003)))
    assert found.min() < -1.9
    assert found.max() > 2.9
    assert (np.abs(found) < 1e-30).any()
    assert found.min() >= -2
    assert found.max() <= 3


def test_all_values_of_a_small_range_are_there():
    low = np.float32(1)
    high = np.nextafter(np.nextafter(low, np.float32(2)), np.float32(2))
    (found,) = ulp.values(float(low), float(high), 1)
    assert found.tolist() == [1.0, 1.0 + 2.0**-23, 1.0 + 2.0**-22]


def test_units():
    exact = np.asarray([1.0, 1.0, np.nan, np.inf])
    found = np.asarray([1.0, 1.0 + 2.0**-22, np.nan, 0.0], np.float32)
    assert ulp.ulps(found, exact).tolist() == [0, 2, 0, np.inf]


def test_units_of_sixteen_bits():
    exact = np.asarray([1.0, 2.0**-20, 70000.0, 70000.0])
    found = np.asarray([1.0 + 2.0**-9, 2.0**-20 + 2.0**-24, np.inf, 0.0], np.float16)
    assert ulp.half_ulps(found, exact, 11, -14).tolist() == [2, 1, 0, 70000 / 2.0**6]
    assert len(ulp.all_halves(-1.0, 1.0, np.float16)) == 2 * (0x3C00 + 1)


def test_a_root_is_correctly_rounded(capsys):
    assert ulp.main(["--only", "Sqrt", "--stride", "1000003"]) == 0
    assert "| Sqrt | 0 … 3.4e+38 | 0.51 | 0.5" in capsys.readouterr().out
