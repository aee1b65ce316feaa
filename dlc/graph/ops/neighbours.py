"""Constant weights whose neighbouring summands stand side by side, as an instruction adds them."""

from __future__ import annotations

import numpy as np

from dlc.graph.op import Array


def side_by_side(w: Array, each: int) -> Array:
    """Weights with `each` summands of a column next to each other.

    Shapes:
        w: [..., c, columns] -> [..., c / each, columns, each]
    """
    *lead, c, columns = w.shape
    split = w.reshape(*lead, c // each, each, columns)
    return np.ascontiguousarray(np.swapaxes(split, -1, -2))


def in_rows(w: Array) -> Array:
    """What `side_by_side` made, as it was, in float64.

    Shapes:
        w: [..., c / each, columns, each] -> f64[..., c, columns]
    """
    *lead, groups, columns, each = w.shape
    moved = np.swapaxes(np.asarray(w, np.float64), -1, -2)
    return moved.reshape(*lead, groups * each, columns)
