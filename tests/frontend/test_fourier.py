"""Fourier transforms against NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model

RNG = np.random.default_rng(6)


def run(node, x, constants=(), opset=17) -> np.ndarray:
    graph = import_model(load_model(model([node], {"x": x.shape}, constants, opset=opset))).graph
    (value,) = graph.outputs
    return evaluate(graph, {v.name: x for v in graph.inputs})[value.name]


def pairs(spectrum) -> np.ndarray:
    """Complex numbers as pairs along a last axis."""
    return np.stack([spectrum.real, spectrum.imag], axis=-1)


def dft(x, axis, *, length=None, opset=20, **attributes) -> np.ndarray:
    constants = {} if length is None else {"n": np.int64(length)}
    names = ["x", "n" if constants else ""]
    if opset >= 20:
        constants["a"] = np.int64(axis)
        names.append("a")
    else:
        attributes["axis"] = axis
    return run(helper.make_node("DFT", names, ["y"], **attributes), x, constants, opset)


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("parts", [1, 2])
def test_transforms_of_any_axis(opset, axis, parts):
    x = RNG.standard_normal((3, 5, 7, parts)).astype(np.float32)
    whole = x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)
    np.testing.assert_allclose(
        dft(x, axis, opset=opset), pairs(np.fft.fft(whole, axis=axis)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("length", [4, 5, 7, 9])
def test_a_length_cuts_or_fills_up(length):
    x = RNG.standard_normal((2, 7, 2)).astype(np.float32)
    whole = x[..., 0] + 1j * x[..., 1]
    got = dft(x, 1, length=length)
    np.testing.assert_allclose(got, pairs(np.fft.fft(whole, length)), rtol=1e-5, atol=1e-5)
    back = dft(x, 1, length=length, inverse=1)
    np.testing.assert_allclose(back, pairs(np.fft.ifft(whole, length)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [6, 7])
def test_half_a_spectrum_and_back(length):
    x = RNG.standard_normal((2, length, 1)).astype(np.float32)
    half = dft(x, 1, onesided=1)
    np.testing.assert_allclose(half, pairs(np.fft.rfft(x[..., 0])), rtol=1e-5, atol=1e-5)
    again = dft(half.astype(np.float32), 1, length=length, onesided=1, inverse=1)
    np.testing.assert_allclose(again, x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("windowed", [False, True])
def test_short_time_transforms(onesided, windowed):
    x = RNG.standard_normal((2, 50, 1)).astype(np.float32)
    window = np.hanning(12).astype(np.float32) if windowed else np.ones(12, np.float32)
    constants: dict[str, Any] = {"step": np.int64(5), "length": np.int64(12)}
    names = ["x", "step", "", "length"]
    if windowed:
        constants["window"], names[2] = window, "window"
    got = run(helper.make_node("STFT", names, ["y"], onesided=onesided), x, constants)
    starts = range(0, 50 - 12 + 1, 5)
    frames = np.stack([x[:, s : s + 12, 0] * window for s in starts], axis=1)
    want = pairs(np.fft.rfft(frames) if onesided else np.fft.fft(frames))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def open_dft(x, *, length=None, **attributes) -> np.ndarray:
    """Along an axis of open size; `length` comes as data."""
    names, feeds = ["x"], {"x": x}
    shapes: dict[str, Any] = {"x": ("batch", "n", x.shape[2])}
    if length is not None:
        names, feeds, shapes = [*names, "l"], {**feeds, "l": np.int64(length)}, {**shapes, "l": ()}
    node = helper.make_node("DFT", names, ["y"], axis=1, **attributes)
    graph = import_model(load_model(model([node], shapes, kinds={"l": "i"}))).graph
    (value,) = graph.outputs
    return evaluate(graph, feeds)[value.name]


@pytest.mark.parametrize("n", [1, 2, 7, 10])
@pytest.mark.parametrize("length", [None, 1, 5, 9, 12])
@pytest.mark.parametrize("inverse", [0, 1])
def test_transforms_of_a_length_that_a_run_tells(n, length, inverse):
    x = RNG.standard_normal((2, n, 2)).astype(np.float32)
    whole = x[..., 0] + 1j * x[..., 1]
    got = open_dft(x, length=length, inverse=inverse)
    want = (np.fft.ifft if inverse else np.fft.fft)(whole, length, axis=1)
    np.testing.assert_allclose(got, pairs(want), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [2, 6, 7])
def test_half_a_spectrum_and_back_of_a_length_that_a_run_tells(n):
    x = RNG.standard_normal((2, n, 1)).astype(np.float32)
    half = open_dft(x, onesided=1)
    np.testing.assert_allclose(half, pairs(np.fft.rfft(x[..., 0])), rtol=1e-5, atol=1e-5)
    again = open_dft(half.astype(np.float32), length=n, onesided=1, inverse=1)
    np.testing.assert_allclose(again, x, rtol=1e-5, atol=1e-5)


def test_waves_of_long_transforms_are_no_constants():
    x = RNG.standard_normal((1, 4099, 1)).astype(np.float32)
    got = dft(x, 1)
    np.testing.assert_allclose(got, pairs(np.fft.fft(x[..., 0])), rtol=1e-5, atol=1e-4)


def test_a_transform_of_nothing_is_refused():
    node = helper.make_node("DFT", ["x"], ["y"], axis=1)
    with pytest.raises(UnsupportedModel, match="the length of a transform is 0"):
        import_model(load_model(model([node], {"x": (1, 0, 1)})))
