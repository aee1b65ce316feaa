"""Sums of products on a GPU that are computed once more, from fewer of them, where not finite.

Blocks multiply tiles, as of any product. A thread then looks at each of its sums, in its registers,
and where one is not finite, it adds up those of its products that count, by itself: rare, and
nothing but a comparison where all is finite.

Before:
    sums -> exact -> result

After:
    for block:
        sums of the tile
        for elements: exact where the sum is not finite, result
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.rules import gpu_contract, gpu_matrix, repair
from dlc.schedule.rules.gpu_contract import Product
from dlc.schedule.rules.prepare import split_digits
from dlc.schedule.space import Space
from dlc.schedule.trace import Trace


@dataclass(frozen=True, slots=True)
class Repaired:
    """A product, the buffer of the sums that are computed once more, and who multiplies."""

    product: Product
    exact: str
    on_engine: bool  # whether warps multiply


def match(func: Func, target: Target) -> Repaired | None:
    """The product in a function whose moves are inlined, or None."""
    trace = Trace(func)
    split_digits(trace, single=True)
    found = repair.find(trace.func)
    product = None if found is None else gpu_contract.as_product(trace.func, found.parts)
    if found is None or product is None:
        return None
    return Repaired(product, found.exact, gpu_matrix.takes(trace.func, product))


def space(func: Func, target: Target) -> Space:
    """The tiles of the product."""
    return gpu_contract.space(func, target)


def schedule(trace: Trace, found: Repaired, target: Target, knobs: Mapping[str, int]) -> None:
    """Let each thread repair its own sums behind the product; see the module."""
    split_digits(trace, single=True)
    trace.do("compute_at", found.exact, found.product.parts.lane)
    trace.do("guard_sum", found.exact)
    trace.do("set_scope", found.exact, "register")
    tiled = gpu_matrix.tile_product if found.on_engine else gpu_contract.tile_product
    tiled(trace, found.product, target, knobs)
