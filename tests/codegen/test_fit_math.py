"""The tables in coefficients.py are what the fit gives."""

from __future__ import annotations

import mpmath as mp
import pytest

from dlc.codegen.llvm import coefficients
from tests.codegen.fit_math import tables

# Of fewer terms: normcdf for results of 16 bits; tanh with half of a unit in the last place, which
# wins more by fewer roundings (docs/accuracy.md) than another term would.
BITS = {"NORMCDF_SHORT": 19, "TANH_F32": 25}


@pytest.mark.slow
def test_the_tables_are_what_the_fit_gives():
    for name, (found, error) in tables().items():
        assert getattr(coefficients, name) == tuple(float(c) for c in found), name
        bits = BITS.get(name, 27 if name.endswith("F32") else 57)
        assert error < mp.mpf(2) ** -bits
