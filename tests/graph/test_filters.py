"""The transforms of Winograd's convolutions: what they give, and how far numbers grow by them."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.graph.ops.filters import Tile, growth, inverse_of, scale_of, transform_weights

TILES = pytest.mark.parametrize("out", [(2, 2), (2, 4), (4, 2), (4, 4)])
THREE = (3, 3)


def convolved(tile, pixels, weights):
    """The convolution of a tile as it is."""
    windows = np.lib.stride_tricks.sliding_window_view(pixels, weights.shape)
    high, wide = tile.strides
    return (windows[::high, ::wide] * weights).sum(axis=(2, 3))


def transformed(tile, pixels, weights):
    """Its pixels, transformed, and the sums of the tile by transforms."""
    left, right = tile.filters
    u = left.weights @ weights @ right.weights.T
    d = np.array([left.pixels(list(column)) for column in pixels.T]).T
    d = np.array([right.pixels(list(row)) for row in d])
    y = np.array([left.sums(list(column)) for column in (u * d).T]).T
    return d, np.array([right.sums(list(row)) for row in y])


@pytest.mark.parametrize(
    ("out", "kernel", "steps"),
    [((2, 2), THREE, ()), ((2, 4), THREE, ()), ((4, 2), THREE, ()), ((4, 4), THREE, ()),
     ((3, 3), (2, 2), ()), ((3, 3), (4, 4), ()), ((3, 3), (2, 4), ()), ((3, 4), (2, 3), ()),
     ((3, 3), THREE, (2, 2)), ((3, 3), (4, 4), (2, 2)), ((2, 2), (5, 5), (2, 2)),
     ((3, 4), THREE, (2, 1)), ((2, 3), (3, 4), (1, 2))],
)  # fmt: skip
def test_transforms_give_the_convolution(out, kernel, steps):
    """As numbers of float64, where rounding hides nothing."""
    tile, random = Tile(out, kernel, steps), np.random.default_rng(0)
    pixels, weights = random.standard_normal(tile.positions), random.standard_normal(kernel)
    _, found = transformed(tile, pixels, weights)
    wanted = convolved(tile, pixels, weights)
    assert found.shape == wanted.shape == out
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("results", "kernel", "step", "taps", "parts"),
    [(2, 2, 1, 3, ()), (2, 3, 1, 3, ()), (2, 4, 1, 3, (2,)), (3, 1, 1, 2, ()), (3, 2, 1, 2, ()),
     (3, 3, 1, 4, ()), (3, 4, 1, 4, ()), (3, 9, 1, 4, (3,)), (4, 7, 1, 3, (3,)), (3, 3, 2, 3, ()),
     (3, 4, 2, 4, ()), (3, 7, 2, 4, (2,)), (2, 5, 2, 5, ())],
)  # fmt: skip
def test_a_kernel_is_one_that_it_fits_or_a_sum_of_the_largest(results, kernel, step, taps, parts):
    tile = Tile((results,), (kernel,), (step,))
    assert (tile.taps, tile.parts) == ((taps,), parts)


def test_equal_weights_become_their_sum_and_zeros():
    one = transform_weights(np.ones((1, 1, 3, 3, 1, 1)), (2, 2))[..., 0, 0, 0, 0]
    np.testing.assert_array_equal(one, np.outer([1, 1.5, 0.5, 1], [1, 1.5, 0.5, 1]))


@TILES
def test_whole_transforms_give_multiples_of_the_convolution(out):
    tile, random = Tile.of_whole(out), np.random.default_rng(0)
    pixels, weights = random.integers(-9, 9, tile.positions), random.integers(-9, 9, THREE)
    moved, found = transformed(tile, pixels, weights)
    assert np.abs(moved).max() <= growth(out) * np.abs(pixels).max()
    np.testing.assert_array_equal(found, scale_of(out) * convolved(tile, pixels, weights))


def test_pixels_grow_by_the_largest_line_of_a_transform():
    assert [growth(tile) for tile in ((2,), (4,), (2, 2), (2, 4), (4, 4))] == [2, 10, 4, 20, 100]


@pytest.mark.parametrize("scale", [2, 4, 24, 48, 576])
def test_a_factor_is_undone_in_as_many_bits(scale):
    inverse, shift = inverse_of(scale)
    most = 2 ** (31 - shift) - 1
    whole = np.array([most, -most - 1, 0, 1, -1, 12345])
    scaled = (whole * scale).astype(np.int32)  # wraps around
    np.testing.assert_array_equal((scaled * np.int32(inverse)) >> shift, whole)
