"""Sums of products that are part of a larger nest: in the memory of one of its iterations."""

from __future__ import annotations

from dataclasses import replace

from dlc.core.target import Target
from dlc.schedule.loop import loops
from dlc.schedule.rules import contract
from dlc.schedule.rules.contraction import analyse
from dlc.schedule.trace import Trace


def schedule_products(trace: Trace, sums: str, target: Target) -> None:
    """Tile the products of a buffer of sums as any contraction is."""
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
    contract.schedule(trace, product, target, {})
