"""Lanes that read elements of one line of memory, in groups: a vector is loaded and shuffled."""

from __future__ import annotations

import pytest

from dlc.codegen.llvm.emit import emit_func
from dlc.core.target import Target
from dlc.schedule.loop import allocs
from dlc.schedule.pipeline import optimize
from dlc.schedule.text import parse_func
from tests.codegen.jit import AVX2, BASELINE, NATIVE, TARGETS, check
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


PLACES = """
def f({size}A: {dtype}[6, 30], I: {index}[6, {extent}], K: i64[{extent}], *, C: {dtype}[6, {extent}]):
    for i in range(6):
        for o in range(({extent} + {lanes} - 1) // {lanes}):
            for l in vectorize({lanes}):
                if o * {lanes} + l < {extent}:
                    C[i, o * {lanes} + l] = A[{row}, {at}]
"""  # noqa: E501
READ = "index(I[i, o * {lanes} + l])"
WRAPPED = f"max(min(({READ} + 30 if {READ} < 0 else {READ}), 29), 0)"
OTHER = "max(min(index(K[o * {lanes} + l]), 5), 0)"


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize(("extent", "size"), [("24", ""), ("n", "n: size, ")])
@pytest.mark.parametrize(
    ("dtype", "lanes", "index"), [("f32", 8, "i64"), ("u8", 16, "i32"), ("f64", 4, "i64")]
)
@pytest.mark.parametrize(
    ("row", "at"),
    [
        ("i", WRAPPED),
        (OTHER, WRAPPED),
        (OTHER, "l"),
        ("i", f"max(min({READ} - l * 2 + i, 29), 0)"),
        ("i", f"max(min({READ} // 3, 29), 0)"),  # no vectors divide
        ("i", f"({WRAPPED} if 3 <= {READ} and {READ} < 70 else l)"),
    ],
)
def test_places_that_data_says_are_found(row, at, dtype, lanes, index, extent, size, target):
    """Also where less lanes are left than a vector has, or the data leads outside."""
    names = {"dtype": dtype, "lanes": lanes, "index": index, "extent": extent, "size": size}
    row, at = row.format(lanes=lanes), at.format(lanes=lanes)
    text = PLACES.format(row=row, at=at, **names).strip()
    check(text, *([{"n": n} for n in (0, 1, 19, 24)] if size else ()), target=target)


@pytest.mark.parametrize("index", ["i64", "i32"])
def test_places_from_data_are_brought_into_range_along_vectors(index):
    """No lane compares for itself, where vectors of 64-bit integers are at hand."""
    names = {"dtype": "f32", "lanes": 8, "index": index, "extent": "24", "size": ""}
    text = PLACES.format(row="i", at=WRAPPED.format(lanes=8), **names).strip()
    made = emit_func(parse_func(text), AVX2)
    assert "smin.v8i64" in made
    assert "smin.i64" not in made
    assert "smin.v8i64" not in emit_func(parse_func(text), BASELINE)
