"""Sketches: schedules for nests that no rule knows, made from the nest alone.

A sketch looks like a rule: `space` gives the knobs, or None where the sketch has nothing to offer,
and `schedule` makes the steps, from what `prepare` has left on. It may try what turns out to be
illegal: the primitives refuse it.

Source: Zheng et al., Ansor: Generating High-Performance Tensor Programs for Deep Learning (OSDI
2020), section 4: multi-level tiling, cache stages, rfactor, and the place of each computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from dlc.autotune.sketch import elements, partial_sums, tiles

SKETCHES: Mapping[str, ModuleType] = {
    "sketch.tiles": tiles,
    "sketch.partial_sums": partial_sums,
    "sketch.elements": elements,
}
