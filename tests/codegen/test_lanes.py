"""Lanes that read elements of one line of memory, in groups: a vector is loaded and shuffled."""

from __future__ import annotations

import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.core.target import Target
from dlc.schedule.loop import allocs
from dlc.schedule.pipeline import optimize
from tests.codegen.jit import AVX2, NATIVE, check
from tests.schedule.rules.windows import in_lanes

AVX512 = Target(features=frozenset({"avx512f", "fma"}))
PICK = """
def f(A: f32[{rows}, {line}], *, C: f32[5, 8]):
    for i in range(5):
        for l in vectorize(8):
            C[i, l] = A[i, {index}]
"""


def text_of(line, index, rows=5):
    return PICK.format(line=line, index=index, rows=rows)


@pytest.mark.parametrize("index", ["l // 4 * 4 + 1", "l // 2 * 2", "7 - l", "l % 4 * 2 + 1"])
@pytest.mark.parametrize("target", [NATIVE, AVX2], ids=["native", "avx2"])
def test_elements_of_a_line_are_picked_from_one_vector(index, target):
    kernel = check(text_of(8, index), target=target)
    text = emit_func(kernel.func, target)
    assert text.count("load <8 x float>") == 1
    assert "load float" not in text


def test_a_line_that_is_longer_is_no_vector():
    check(text_of(9, "l // 4 * 4 + 1"), target=NATIVE)


@pytest.mark.parametrize("group", [2, 4, 8])
def test_groups_are_shuffled(group):
    """Each pixel is loaded once for all lanes, and shuffled for each channel of a group."""
    func = optimize(in_lanes(11, group), AVX512)
    text = emit_func(func, AVX512)
    assert "shufflevector <16 x float>" in text
    assert "load float" not in text
    assert "insertelement" not in text


@pytest.mark.parametrize("kernel", [(7, 7), (11, 11), (67,), (5, 5, 5)], ids=str)
def test_groups_in_large_windows_are_shuffled_for_several_results(kernel):
    """A window too large to be written out is a loop over its rows, around the shuffles."""
    func = optimize(in_lanes(12, 8, kernel), AVX512)
    text = emit_func(func, AVX512)
    assert "shufflevector <16 x float>" in text
    assert "load float" not in text
    *_, results, _ = allocs(func.body)["conv_lanes"].buffer.type.static_shape
    assert results >= 4
