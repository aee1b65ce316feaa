"""Sums of products that are part of a larger nest: in the memory of one of its iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dlc.core.target import Target
from dlc.schedule.loop import loops
from dlc.schedule.rules import contract
from dlc.schedule.rules.contraction import analyse
from dlc.schedule.rules.tile import vector_registers
from dlc.schedule.space import Limit, Space
from dlc.schedule.trace import Trace

TILE_KNOBS: Mapping[str, tuple[int, ...]] = {
    "rows": contract.ROWS,
    "columns": contract.COLUMNS,
    "steps": contract.STEPS,
}


def products_space(target: Target, own: Mapping[str, tuple[int, ...]]) -> Space:
    """Choices of a rule, and those of the tiles of its products; 0: the analytic ones."""
    registers = vector_registers(target, target.lanes(4))
    return Space({**own, **TILE_KNOBS}, (Limit(("rows", "columns"), registers - 2),))


def schedule_products(
    trace: Trace,
    sums: str,
    target: Target,
    knobs: Mapping[str, int],
    longest: int | None = None,
) -> None:
    """Tile the products of a buffer of sums as any contraction is, by those of `TILE_KNOBS`.

    Chains of additions are `longest` at most, as far as extents allow.
    """
    top = trace.stage(sums).names[0]
    name = f"{sums}_product"
    trace.do("cache_write", sums, top, name, "local")
    product = analyse(trace.func, trace.stage(name), trace.stage(sums))
    assert product is not None, "cache_write keeps the form of a product"
    inside = loops(trace.loop(top).body)
    product = replace(
        product,
        rows=tuple(v for v in product.rows if v in inside),
        batch=tuple(v for v in product.batch if v in inside),
        within=top,
    )
    of_tiles = {name: knobs[name] for name in TILE_KNOBS if name in knobs}
    contract.schedule(trace, product, target, of_tiles, longest)
