"""What measured designs say about others: a Gaussian process over their knobs.

It learns from a handful of trials and asks for no schedule, so it can look at a whole space.
Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), algorithm 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dlc.autotune.design import Design, Family

Array = np.ndarray[Any, Any]
_RANGES = (0.5, 1.0, 2.0, 4.0)  # how unlike designs at the two ends of one knob may be
_KIN = 0.1  # covariance of designs of two families with knobs in the same place
_NOISE = 0.02  # of the variance of what was measured
_EXTREME = 3.0  # deviations beyond which a bad score tells no more
_MOST = 256  # trials that are looked at: the work grows with their cube


class KnobProcess:
    """Predicts scores of designs of some families; the choices of a knob count by their order."""

    def __init__(self, families: Sequence[Family]) -> None:
        names = [(f.name, knob) for f in families for knob in f.space.knobs]
        self._axis = {name: n for n, name in enumerate(names)}
        self._place = {
            (f.name, knob): {v: at / max(1, len(choices) - 1) for at, v in enumerate(choices)}
            for f in families
            for knob, choices in f.space.knobs.items()
        }
        self._family = {f.name: n for n, f in enumerate(families)}

    def points(self, designs: Sequence[Design]) -> Array:
        """Designs as rows of numbers; the first tells the family."""
        rows = np.zeros((len(designs), 1 + len(self._axis)))
        for row, design in zip(rows, designs, strict=True):
            row[0] = self._family[design.family]
            for knob, value in design.knobs:
                name = (design.family, knob)
                row[1 + self._axis[name]] = self._place[name].get(value, 0.5)
        return rows

    def predict(self, known: Array, scores: Sequence[float], asked: Array) -> tuple[Array, Array]:
        """Expected scores of points, and how far off they may be, in deviations of what is known.

        Args:
            known: points that were measured, (trials, knobs).
            scores: what was measured there, larger is better, (trials,).
            asked: other points, (designs, knobs).
        """
        known, values = known[-_MOST:], np.asarray(scores[-_MOST:], np.float64)
        values = values - np.median(values)
        values = np.clip(values / max(float(values.std()), 1e-3), -_EXTREME, _EXTREME)
        apart = _distance(known, known)
        fits = [_fit(apart, values, scale) for scale in _RANGES]
        best = max(range(len(_RANGES)), key=lambda n: fits[n][0])
        _, lower, weights = fits[best]
        shared = _covariance(_distance(asked, known), _RANGES[best])
        told = np.linalg.solve(lower, shared.T)
        variance = np.maximum(0.0, 1.0 - (told * told).sum(0))
        return shared @ weights, np.sqrt(variance)


def _distance(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum of all differences between knobs, and whether the families are the same."""
    total = np.zeros((len(a), len(b)))
    for axis in range(1, a.shape[1]):
        total += np.abs(a[:, axis, None] - b[None, :, axis])
    return total, a[:, :1] == b[None, :, 0]


def _covariance(distance: tuple[Array, Array], scale: float) -> Array:
    apart, same = distance
    found: Array = np.exp(-scale * apart) * np.where(same, 1.0, _KIN)
    return found


def _fit(distance: tuple[Array, Array], values: Array, scale: float) -> tuple[float, Array, Array]:
    """The logarithm of the likelihood, and what predictions need."""
    matrix = _covariance(distance, scale) + _NOISE * np.eye(len(values))
    lower = np.linalg.cholesky(matrix)
    weights = np.linalg.solve(lower.T, np.linalg.solve(lower, values))
    likelihood = -0.5 * float(values @ weights) - float(np.log(np.diag(lower)).sum())
    return likelihood, lower, weights
