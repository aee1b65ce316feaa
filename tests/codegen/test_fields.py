"""Numbers of a few bits of a word become floats."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.schedule.text import parse_func
from tests.codegen.jit import AVX2, BASELINE, NATIVE, check

AVX512 = replace(NATIVE, features=NATIVE.features | {"avx512f"})
CONVERTED = re.compile("[su]itofp")


def unpacked(bits, less="", at="e * {bits}", mask=None, wide="e in unroll({each})"):
    """A function of two rows of words of 16 lanes; `less` takes something away from a number."""
    each = 32 // bits
    mask = (1 << bits) - 1 if mask is None else mask
    at, wide = at.format(bits=bits), wide.format(each=each)
    return (
        f"def f(A: u32[2, 16], Z: f32[16], *, B: f32[2, {each}, 16]):\n"
        f"    for i in range(2):\n        for {wide}:\n            for l in vectorize(16):\n"
        f"                B[i, e, l] = f32((A[i, l] >> u32({at})) & u32({mask})){less}\n"
    )


def words():
    """Each number in each place: any lane and word has others."""
    return np.random.default_rng(3).integers(0, 1 << 32, (2, 16), dtype=np.uint32)


def arrays():
    return {"A": words(), "Z": np.arange(-8, 8).astype(np.float32) / 4}


@pytest.mark.parametrize("target", [NATIVE, AVX2, BASELINE], ids=["native", "avx2", "baseline"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("less", ["", " - 1.0", " - Z[l]", " - 0.5", " - 300.0"])
def test_numbers_in_all_places_of_a_word(bits, less, target):
    check(unpacked(bits, less), target=target, arrays=arrays(), rtol=0)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_no_number_is_converted_and_one_shift_is_for_all(bits):
    text = emit_func(parse_func(unpacked(bits, " - 1.0")), AVX2)
    assert not CONVERTED.search(text)
    assert text.count("lshr <16 x i32>") == 1


def test_every_other_number_of_four_bits_is_looked_up():
    text = emit_func(parse_func(unpacked(4, " - 8.0")), AVX512)
    assert text.count("call <16 x float> @llvm.x86.avx512.permvar.sf.512") == 4
    assert "permvar" not in emit_func(parse_func(unpacked(2)), AVX512)
    assert "permvar" not in emit_func(parse_func(unpacked(4)), AVX2)


@pytest.mark.parametrize(
    "how",
    [
        {"wide": "e in range({each})"},  # which place is known at run time only
        {"mask": 5},  # not the lowest bits
        {"bits": 16},  # more than are told from what is taken away
    ],
)
def test_other_bits_are_converted(how):
    text = unpacked(**{"bits": 4, **how})
    assert CONVERTED.search(emit_func(parse_func(text), NATIVE))
    check(text, arrays=arrays(), rtol=0)
