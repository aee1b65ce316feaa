"""Unrolled loops: one iteration behind the other, or polynomials side by side."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from dlc.codegen.llvm.abreast import Unrolled, unrolled_polynomial
from dlc.codegen.llvm.usage import Usage, constant_extent
from dlc.codegen.llvm.values import Values
from dlc.schedule.loop import For, Stmt
from dlc.te.transform import loads

SIDE_BY_SIDE = 6
"""How many vectors of a polynomial alternate: tiles of products often have 12 of them."""


class Unroll:
    """Writes out the iterations of loops; `run_body` emits one."""

    def __init__(self, values: Values, usage: Usage, run_body: Callable[[Stmt], None]) -> None:
        self.builder = values.builder
        self.indices = values.indices
        self.memory = values.memory
        self.usage = usage
        self.run_body = run_body

    def run(self, loop: For) -> None:
        """Emit all iterations of a loop."""
        nest = unrolled_polynomial(loop, self.usage.target)
        if nest is not None and self._run_side_by_side(nest):
            return
        fenced, fixed = self.usage.wants_fences(loop), self.indices.fixed
        for n in range(constant_extent(loop)):
            if n and fenced:
                self.memory.fence()
            fixed[loop.var] = n
            self.run_body(loop.body)
        fixed.pop(loop.var, None)

    def _run_side_by_side(self, nest: Unrolled) -> bool:
        """Emit iterations whose instructions alternate, if none of them needs another one."""
        for loop in (*nest.loops, nest.vector):
            self.indices.bind(loop.var, loop.extent)
        names = [loop.var for loop in nest.loops]
        ranges = [range(constant_extent(loop)) for loop in nest.loops]
        places = [dict(zip(names, at, strict=True)) for at in itertools.product(*ranges)]
        apart = self._are_apart(nest, places)
        if apart:
            for first in range(0, len(places), SIDE_BY_SIDE):
                self._alternate(nest.vector, places[first : first + SIDE_BY_SIDE])
        for name in names:
            self.indices.fixed.pop(name, None)
        return apart

    def _are_apart(self, nest: Unrolled, places: list[dict[str, int]]) -> bool:
        """Whether no iteration writes what another one reads or writes.

        One that writes registers may take apart what another one holds.
        """
        store, storage = nest.store, self.memory.storage[nest.store.buffer]
        if storage.base is None:
            return False
        for load in loads(store.value):
            same = self.memory.storage[load.buffer].alias == storage.alias
            if same and load.index != store.index:
                return False
        lanes, starts, rests = constant_extent(nest.vector), [], set()
        for place in places:
            self.indices.fixed.update(place)
            with self.indices.as_lanes(nest.vector.var, lanes):
                flat = self.indices.element(store.index, storage.strides)
            starts.append(flat.const)
            rests.add((flat.rest, flat.lane))
        gaps = [b - a for a, b in itertools.pairwise(sorted(starts))]
        ((_, step), *others) = rests
        return not others and step == 1 and min(gaps, default=lanes) >= lanes

    def _alternate(self, vector: For, places: list[dict[str, int]]) -> None:
        """Emit some iterations, an instruction of each in turn, as far as there is no branch."""
        builder = self.builder
        parts: list[list[str]] = []
        for place in places:
            self.indices.fixed.update(place)
            block, start = builder.current, len(builder.current.lines)
            builder.open_scope()  # so that none reads what another one has computed
            self.run_body(vector)
            builder.close_scope()
            if builder.current is block:
                parts.append(block.lines[start:])
                del block.lines[start:]
            else:
                block.lines[start:start] = _in_turn(parts)
                parts = []
        builder.current.lines += _in_turn(parts)


def _in_turn(parts: list[list[str]]) -> list[str]:
    """A line of each part, the next one of each, and so on."""
    return [line for some in itertools.zip_longest(*parts) for line in some if line is not None]
