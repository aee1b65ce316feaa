"""The two loops a profile is held against do what they are counted as."""

from __future__ import annotations

from dlc.codegen.llvm import peaks
from dlc.codegen.llvm.compile import assembly
from tests.codegen.jit import AVX2, BASELINE, NATIVE


def test_the_loop_of_multiply_adds_holds_as_many_as_are_counted():
    for target in (NATIVE, AVX2):
        text = assembly(peaks.fma_loop(target.lanes(4)), target)
        assert text.count("vfmadd") == peaks.FMA_CHAINS


def test_peaks_are_positive():
    for target in (NATIVE, BASELINE):
        found = peaks.measure_peaks(target)
        assert 0 < found.gflops < 1e4
        assert 0 < found.read_gbytes_per_s < 1e4
