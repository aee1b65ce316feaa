"""The tables in coefficients.py are what the fit gives."""

from __future__ import annotations

import mpmath as mp
import pytest

from dlc.codegen.llvm import coefficients
from tests.codegen.fit_math import tables

# Of fewer terms: for results of 16 bits; for a power whose rounding costs as much.
BITS = {"NORMCDF_SHORT": 19, "POWER_NORMCDF_F32": 23.5}


@pytest.mark.slow
def test_the_tables_are_what_the_fit_gives():
    for name, (found, error) in tables().items():
        assert getattr(coefficients, name) == tuple(float(c) for c in found), name
        bits = BITS.get(name, 27 if name.endswith("F32") else 57)
        assert error < mp.mpf(2) ** -bits
