"""Who is right? Compares a result with the float64 reference and with other engines.

The reference decides. Its reading of the model is trusted only where another engine shares it: an
element that no peer sees the same way is not judged, and where two peers agree on another value
that is reported as a difference in meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

ROUNDINGS = {"float16": 24, "bfloat16": 8, "float32": 300, "float64": 1e5}
"""How many units of the type's precision, of the magnitude plus 1, are nobody's fault."""
TIMES_PEERS = 16
"""How much further from the reference than the worst of the peers a float may be."""
_EPSILON = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}


def why_wrong(
    found: Mapping[str, Array],
    exact: Mapping[str, Array],
    peers: Sequence[Mapping[str, Array]],
    *,
    overflows: bool = False,
) -> str:
    """Why some result is wrong, or "".

    Where the reference `overflows` later than the model's types do, what a peer sees as we do is
    right.
    """
    for name, ours in found.items():
        others = [p[name] for p in peers if name in p]
        if reason := _why_wrong(np.asarray(ours), np.asarray(exact[name]), others, overflows):
            return f"'{name}' {reason}"
    return ""


def is_judged(
    found: Mapping[str, Array], exact: Mapping[str, Array], peers: Sequence[Mapping[str, Array]]
) -> bool:
    """Whether a peer sees some element of some result as the reference does, or there is none."""
    if not peers or all(a.size == 0 for a in exact.values()):
        return True
    return any(
        _settled(np.asarray(exact[name]), [np.asarray(p[name]) for p in peers], ours.dtype).any()
        for name, ours in found.items()
    )


def why_misread(
    found: Mapping[str, Array], exact: Mapping[str, Array], peers: Sequence[Mapping[str, Array]]
) -> str:
    """Why the reference seems to read the model in a way nobody else does, or "".

    One peer may be wrong: only what two say alike counts.
    """
    for name, ours in found.items():
        others = [np.asarray(p[name]) for p in peers if name in p]
        truth = np.asarray(exact[name])
        if len(others) < 2 or not _agree(*others[:2]):
            continue
        if all(p.shape != truth.shape for p in others):
            return f"'{name}' has shape {truth.shape}, elsewhere {others[0].shape}"
        if all(p.dtype != ours.dtype for p in others):
            return f"'{name}' is {ours.dtype}, elsewhere {others[0].dtype}"
        bad = ~_settled(truth, others, np.asarray(ours).dtype) & _fits_type(truth, ours.dtype)
        if np.asarray(ours).dtype.kind in "iu" and ours.shape == others[0].shape:
            # All but the reference rounded a float32 that lies beside a tie, or on it.
            bad &= (ours != others[0]) | (difference(truth, others[0]) > 1)
        if ours.dtype == np.float64:  # both follow bodies whose constants (1/6) are float32s
            bad &= difference(truth, others[0]) > _allowed(truth, np.dtype(np.float32))
        if bad.any():
            where = tuple(int(i) for i in np.argwhere(bad)[0])
            values = ", ".join(str(p[where]) for p in others if p.shape == truth.shape)
            return f"'{name}' at {list(where)} is {truth[where]}, elsewhere {values}"
    return ""


def _agree(a: Array, b: Array) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool((difference(a, b) <= 30 * _allowed(a, a.dtype)).all())


def _why_wrong(ours: Array, exact: Array, peers: list[Array], overflows: bool) -> str:
    if ours.shape != exact.shape:
        return f"has shape {ours.shape}, not {exact.shape}"
    settled = _settled(exact, peers, ours.dtype)
    apart = difference(ours, exact)
    allowed = _allowed(exact, ours.dtype)
    fits = [p for p in peers if p.shape == exact.shape]
    if fits and _is_float(ours.dtype):
        worst = max(
            float(np.where(settled, _finite(difference(p, exact)), 0).max(initial=0)) for p in fits
        )
        allowed = allowed + TIMES_PEERS * worst
    settled &= _fits_type(exact, ours.dtype)
    bad = settled & ~(apart <= allowed)
    for peer in fits if overflows else ():
        bad &= ~(difference(ours, peer) <= _allowed(ours, ours.dtype))
    if not bad.any():
        return ""
    where = tuple(int(i) for i in np.argwhere(bad)[0])
    share = f"{int(bad.sum())} of {bad.size}"
    return f"at {list(where)} is {ours[where]}, not {exact[where]} ({share} elements wrong)"


def difference(a: Array, b: Array) -> Array:
    """Absolute differences; equal infinities and two NaN are none, one NaN is infinite."""
    if a.dtype.kind in "biu" and b.dtype.kind in "biu":
        return np.where(a == b, 0.0, np.maximum(1.0, np.abs(a.astype(np.float64) - b)))
    first, second = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(first - second)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    return np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))


def _settled(exact: Array, peers: Sequence[Array], dtype: np.dtype[Any]) -> Array:
    """Where at least one of the peers, if there are any, agrees with the reference roughly."""
    fits = [p for p in peers if p.shape == exact.shape]
    if not peers:
        return np.ones(exact.shape, bool)
    found = np.zeros(exact.shape, bool)
    for peer in fits:
        found |= difference(np.asarray(peer), exact) <= 30 * _allowed(exact, dtype)
    return found


def _fits_type(exact: Array, dtype: np.dtype[Any]) -> Array:
    """Where the exact value is not on the way to 0 or infinity: there the order decides."""
    if not _is_float(dtype) or dtype.name == "bfloat16":
        return np.ones(exact.shape, bool)
    size = np.abs(exact.astype(np.float64))
    info = np.finfo(dtype)
    return np.asarray(~np.isfinite(size) | (size == 0) | ((size > info.tiny) & (size < info.max)))


def _allowed(exact: Array, dtype: np.dtype[Any]) -> Array:
    if not _is_float(dtype):
        return np.zeros(exact.shape)
    magnitude = _finite(np.abs(exact.astype(np.float64)))
    return np.asarray(ROUNDINGS[dtype.name] * _EPSILON[dtype.name] * (magnitude + 1))


def _finite(array: Array) -> Array:
    return np.where(np.isfinite(array), array, 0.0)


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.name in ROUNDINGS
