"""The tables in coefficients.py are what the fit gives."""

from __future__ import annotations

import mpmath as mp
import pytest

from dlc.codegen.llvm import coefficients
from tests.codegen.fit_math import tables


@pytest.mark.slow
def test_the_tables_are_what_the_fit_gives():
    for name, (found, error) in tables().items():
        assert getattr(coefficients, name) == tuple(float(c) for c in found), name
        bits = 19 if name.endswith("SHORT") else 27 if name.endswith("F32") else 57
        assert error < mp.mpf(2) ** -bits
