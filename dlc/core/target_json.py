"""Targets as data: what a record says it was measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from dlc.core.errors import UserError
from dlc.core.target import TILE_CYCLES, Gpu, Target


def target_to_json(target: Target) -> dict[str, object]:
    """A target as data. LLVM's name of the CPU is left out: it changes no schedule."""
    data = asdict(target) | {"features": sorted(target.features)}
    del data["cpu"]
    # Facts that older records do not tell, or that change nothing beside an engine.
    unsaid = {
        "gpu": None,
        "in_halves": False,
        "few_loads": False,
        "slow_pairs": target.has_matrix_engine and target.slow_pairs,
        "tile_cycles": TILE_CYCLES,
    }
    return {k: v for k, v in data.items() if k not in unsaid or v != unsaid[k]}


def record_facts(target: Target) -> dict[str, object]:
    """The facts that have to be the same for a record to be of use.

    How fast a matrix engine was found to be is none: it changes from hour to hour with who else
    uses it, and a record compares what was measured in turns.
    """
    return target_to_json(replace(target, tile_cycles=TILE_CYCLES))


def target_from_json(data: Mapping[str, Any]) -> Target:
    """Read what `target_to_json` wrote; a fact it did not know yet gets its default.

    Raises:
        UserError: it is not a target.
    """
    try:
        given = dict(data) | {"features": frozenset(data["features"])}
        if gpu := given.get("gpu"):
            given["gpu"] = Gpu(**gpu | {"archs": tuple(gpu["archs"])})
        target = Target(**given)
        hash(target)
    except (KeyError, TypeError) as error:
        raise UserError(detail=f"not a target of a tuning task: {error}") from error
    caches = (target.l1_bytes, target.l2_bytes)
    numbers = (target.cores, *caches, target.thread_operations, target.tile_cycles)
    if not all(isinstance(n, int) for n in numbers) or not isinstance(target.triple, str):
        raise UserError(detail="not a target of a tuning task")
    return target
