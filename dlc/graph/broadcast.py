"""Questions about constants that broadcast with a tensor."""

from __future__ import annotations

import numpy as np

from dlc.graph.op import Array


def along_axis(array: Array, rank: int, axis: int, count: int) -> Array | None:
    """The entries of a constant that differs along one axis of a tensor at most.

    Args:
        array: The constant, aligned with the tensor's last dimensions.
        rank: The tensor's number of dimensions.
        axis: The axis, counted from the front.
        count: The tensor's size there.

    Returns:
        `count` entries, or None where the constant differs along another axis or is wider.
    """
    if array.ndim > rank:
        return None
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if any(size != 1 for d, size in enumerate(full.shape) if d != axis):
        return None
    if full.shape[axis] not in (1, count):
        return None
    return np.broadcast_to(full.reshape(-1), (count,))


def scale_groups(w: Array, factors: Array, groups: int) -> Array:
    """Weights [rows, columns, *kernel] of as many groups of rows, times a factor for each column.

    Each group has factors of its own: `groups` times as many as there are columns.
    """
    rows = np.repeat(factors.reshape(groups, w.shape[1]), w.shape[0] // groups, axis=0)
    return np.asarray(w * rows.reshape(*w.shape[:2], *(1,) * (w.ndim - 2)))
