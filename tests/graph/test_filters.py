"""The transforms of Winograd's convolutions: what they give, and how far numbers grow by them."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.graph.ops.filters import (
    FILTERS,
    WHOLE_FILTERS,
    growth,
    inverse_of,
    positions,
    scale_of,
    transform_weights,
)

TILES = pytest.mark.parametrize("tile", [(2, 2), (2, 4), (4, 2), (4, 4)])


def convolved(pixels, weights):
    """The convolution of a tile as it is."""
    high, wide = (n - 2 for n in pixels.shape)
    return np.array([
        [(pixels[i : i + 3, j : j + 3] * weights).sum() for j in range(wide)] for i in range(high)
    ])  # fmt: skip


def transformed(tile, filters, pixels, weights):
    """Its pixels, transformed, and the sums of the tile by transforms."""
    left, right = (filters[n] for n in tile)
    u = transform_weights(weights[None, None, :, :, None, None], tile, filters)
    d = np.array([left.pixels(list(column)) for column in pixels.T]).T
    d = np.array([right.pixels(list(row)) for row in d])
    m = u[:, :, 0, 0, 0, 0] * d
    y = np.array([left.sums(list(column)) for column in m.T]).T
    return d, np.array([right.sums(list(row)) for row in y])


@TILES
def test_transforms_give_the_convolution(tile):
    """As numbers of float64, where rounding hides nothing."""
    random = np.random.default_rng(0)
    pixels, weights = random.standard_normal(positions(tile)), random.standard_normal((3, 3))
    _, found = transformed(tile, FILTERS, pixels, weights)
    np.testing.assert_allclose(found, convolved(pixels, weights), rtol=1e-12, atol=1e-12)


def test_equal_weights_become_their_sum_and_zeros():
    one = transform_weights(np.ones((1, 1, 3, 3, 1, 1)), (2, 2))[..., 0, 0, 0, 0]
    np.testing.assert_array_equal(one, np.outer([1, 1.5, 0.5, 1], [1, 1.5, 0.5, 1]))


@TILES
def test_whole_transforms_give_multiples_of_the_convolution(tile):
    random = np.random.default_rng(0)
    pixels, weights = random.integers(-9, 9, positions(tile)), random.integers(-9, 9, (3, 3))
    moved, found = transformed(tile, WHOLE_FILTERS, pixels, weights)
    assert np.abs(moved).max() <= growth(tile) * np.abs(pixels).max()
    np.testing.assert_array_equal(found, scale_of(tile) * convolved(pixels, weights))


def test_pixels_grow_by_the_largest_line_of_a_transform():
    assert [growth(tile) for tile in ((2,), (4,), (2, 2), (2, 4), (4, 4))] == [2, 10, 4, 20, 100]


@pytest.mark.parametrize("scale", [2, 4, 24, 48, 576])
def test_a_factor_is_undone_in_as_many_bits(scale):
    inverse, shift = inverse_of(scale)
    most = 2 ** (31 - shift) - 1
    whole = np.array([most, -most - 1, 0, 1, -1, 12345])
    scaled = (whole * scale).astype(np.int32)  # wraps around
    np.testing.assert_array_equal((scaled * np.int32(inverse)) >> shift, whole)
