"""Attention by pairs of bf16 in vectors: scheduled kernels against exact arithmetic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.schedule.loop import allocs
from dlc.schedule.rules import attend
from tests.codegen.jit import AVX2, NATIVE, Kernel, check
from tests.codegen.test_attend_planes import TEXT, expected, named, operands, parallel, scheduled_by
from tests.codegen.test_pairs import PAIRS, needs_pairs

PAIRED = TEXT.replace("matmul_pair(", "matmul_pairs_computed(").replace(", planes=COUNT", "")


def scheduled(text=PAIRED, target=PAIRS, **sizes):
    """The scheduled function; what is not in `sizes` is open."""
    return scheduled_by(attend, text, target, sizes)


CASES = {
    "whole_tiles": (2, 64, 32, 3, 32),
    "uneven": (1, 37, 45, 2, 48),
    "few_rows": (1, 5, 75, 1, 64),
    "odd": (1, 33, 17, 1, 81),
    "narrow": (1, 20, 40, 2, 8),
}


@needs_pairs
@pytest.mark.parametrize("name", CASES)
def test_products_of_small_integers_are_exact(name):
    batch, rows, keys, heads, size = CASES[name]
    kernel = Kernel(scheduled(B=batch, M=rows, N=keys, H=heads, D=size))
    assert kernel.ir.count("dpbf16ps") > 1
    given = operands(batch, rows, keys, heads, size)
    np.testing.assert_array_equal(kernel({}, named(given))["out"], expected(*given))


@needs_pairs
def test_cores_share_the_rows_of_few_matrices():
    func = scheduled(target=replace(PAIRS, cores=2), B=1, M=64, N=45, H=1, D=32)
    assert parallel(func)[-1] == "4"
    given = operands(1, 64, 45, 1, 32)
    found = Kernel(func, PAIRS)({}, named(given))["out"]
    np.testing.assert_array_equal(found, expected(*given))


@needs_pairs
def test_open_lengths_are_exact():
    kernel = Kernel(scheduled(H=2, D=32))
    for batch, rows, keys in ((1, 32, 64), (2, 71, 33), (1, 1, 97), (3, 16, 15), (1, 0, 4)):
        given = operands(batch, rows, keys, 2, 32)
        sizes = {"b": batch, "m": rows, "n": keys}
        np.testing.assert_array_equal(kernel(sizes, named(given))["out"], expected(*given))


@needs_pairs
@pytest.mark.parametrize("fixed", [{"D": 15}, {"H": 3}, {"M": 20, "N": 5}], ids=str)
def test_open_heads_are_exact(fixed):
    """Lines that are an unknown number of elements apart are packed without instructions."""
    kernel = Kernel(scheduled(**fixed))
    for heads, size in ((3, 15), (3, 64)):
        batch, rows, keys = 2, fixed.get("M", 17), fixed.get("N", 37)
        size = fixed.get("D", size)
        given = operands(batch, rows, keys, heads, size)
        sizes = {"b": batch, "m": rows, "n": keys, "h": heads, "d": size}
        sizes = {name: n for name, n in sizes.items() if name.upper() not in fixed}
        np.testing.assert_array_equal(kernel(sizes, named(given))["out"], expected(*given))


@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
def test_any_target_and_the_interpreter_compute_the_same(target):
    func = scheduled(target=target, B=1, M=5, N=19, H=2, D=24)
    check(func, target=target, arrays=named(operands(1, 5, 19, 2, 24)), rtol=0)


def test_keys_and_values_are_packed_by_instructions_and_weights_rounded_in_their_row():
    """Also on a machine that cannot run them."""
    func = scheduled(B=2, M=64, N=96, H=3, D=32)
    text = str(func)
    assert text.count('invoke("pack_columns_apart_bf16_1"') == 1
    assert text.count('invoke("pack_rows_apart_bf16_1"') == 1
    assert text.count('invoke("dot_2xbf16_f32"') == 2
    made = {name.rsplit("_", 1)[0] for name in allocs(func.body)}
    assert "hard_sigmoid" not in made  # the last step of the chain is part of the rounding
    assert emit_func(func, PAIRS).count("dpbf16ps.512") > 1


@needs_pairs
def test_infinite_values_reach_only_their_columns():
    """Rows that fill a tile up are zeros times zeros, not times a value that is there."""
    kernel = Kernel(scheduled(B=1, M=20, N=33, H=1, D=32))
    q, k, v, m = operands(1, 20, 33, 1, 32)
    m[...] = 0.0
    k[...] = 0.0  # all weights are 0.5
    v[0, 32, 0, 2], v[0, 4, 0, 7] = np.inf, np.nan
    found = kernel({}, named((q, k, v, m)))["out"]
    np.testing.assert_array_equal(found, expected(q, k, v, m))
    assert np.isposinf(found[0, :, 0, 2]).all()
    assert np.isnan(found[0, :, 0, 7]).all()
    assert np.isfinite(found).sum() == 20 * 30
