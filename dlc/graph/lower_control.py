"""Loops and branches of a graph as statements of the host program.

A value whose size changes from step to step, or with the branch, is in memory that a slot owns; its
sizes are elements of a small buffer, from which they are bound again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dlc.core.types import INDEX, DType
from dlc.graph.conditions import conditions, late_counts
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.ops.control import If, Loop
from dlc.schedule.loop import Buffer
from dlc.schedule.program import (
    Allocate,
    BindSize,
    Copy,
    HostIf,
    HostLoop,
    HostStmt,
    Put,
    Release,
    Slot,
    Take,
    View,
    WriteSize,
)
from dlc.te.expr import ONE, ZERO, Const, Load, Var, cast
from dlc.te.types import TensorType

if TYPE_CHECKING:
    from dlc.graph.lower import Lowering

_NEGATIVE = "a size that changes in a loop or with a branch is negative"


class Moving:
    """The values of a loop or branch whose sizes change: a slot for each, a cell for each size."""

    def __init__(self, lowering: Lowering, own: str, sizes: list[tuple[str, int, int]]) -> None:
        self.lowering = lowering
        self.sizes = sizes  # name, position of the value, axis
        self.slots = {p: lowering.unused(f"{own}slot{p}") for _, p, _ in sizes}
        self.cells = ""
        if sizes:
            name = lowering.unused(f"{own}sizes")
            self.cells = lowering.own(name, TensorType((len(sizes),), DType.I64))

    def opening(self) -> list[HostStmt]:
        """The slots, empty."""
        return [Slot(slot) for slot in self.slots.values()]

    def fill(
        self,
        sources: dict[int, tuple[str, TensorType]],
        prefix: str,
        put: Sequence[Put] = (),
    ) -> list[HostStmt]:
        """Copy values into the slots, and their sizes into the cells; some are `put` as they are.

        All are copied before any slot is filled: what a slot held may be a source.
        """
        copies: list[HostStmt] = []
        puts: list[HostStmt] = [*put]
        filled = {each.slot for each in put}
        for position, slot in self.slots.items():
            if slot in filled:
                continue
            source, type_ = sources[position]
            name = self.lowering.fresh_name(f"{prefix}value{position}")
            copies += [Allocate(Buffer(name, type_)), Copy(name, source)]
            puts.append(Put(slot, name))
        writes: list[HostStmt] = [
            WriteSize(self.cells, cell, sources[position][1].shape[axis])
            for cell, (_, position, axis) in enumerate(self.sizes)
        ]
        return [*copies, *writes, *puts]

    def bind(self, names: Iterable[str]) -> list[HostStmt]:
        """Bind size variables to what the cells hold; what they must fulfil is checked."""
        statements: list[HostStmt] = []
        for cell, name in enumerate(names):
            load = Load(self.cells, (Const(cell, INDEX),), DType.I64)
            statements.append(BindSize(name, cast(INDEX, load), _NEGATIVE))
            self.lowering.known.add(name)
        return [*statements, *self.lowering.checks()]

    def take(self, position: int, name: str, type_: TensorType) -> Take:
        """The value of a slot as a buffer."""
        self.lowering.roots[name] = name
        return Take(Buffer(name, type_), self.slots[position])


def lower_loop(
    lowering: Lowering, node: Node, op: Loop, outer: dict[Value, str], prefix: str
) -> list[HostStmt]:
    """A loop that ends when a condition fails; see `Loop`."""
    body, count = op.body, op.carries
    own = lowering.claim(f"{prefix}{node.outputs[0].name}_", body)
    condition, starts = node.inputs[0], node.inputs[1 : 1 + count]
    step = Var(lowering.unused(f"{own}t"))
    moving = Moving(lowering, own, list(op.moving()))
    go = lowering.own(lowering.unused(f"{own}go"), TensorType((), DType.BOOL))
    number = lowering.own(lowering.unused(f"{own}number"), TensorType((1,), DType.I64))
    steps = lowering.own(prefix + node.outputs[0].name, node.outputs[0].type)
    before: list[HostStmt] = [Copy(go, lowering.touch(outer[condition])), *moving.opening()]
    before.append(WriteSize(steps, 0, ZERO))
    scalar = lowering.view(lowering.unused(f"{own}step"), TensorType((), DType.I64), number)
    buffers: dict[Value, str] = {body.inputs[0]: scalar.buffer.name}
    fixed: dict[int, str] = {}
    for position, (value, start) in enumerate(zip(body.inputs[1:], starts, strict=False)):
        lowering.touch(outer[start])
        buffers[value] = own + value.name
        if position not in moving.slots:
            fixed[position] = lowering.own(buffers[value], value.type)
            before.append(Copy(buffers[value], outer[start]))
    before += moving.fill({p: (outer[v], v.type) for p, v in enumerate(starts)}, f"{own}first_")
    captured = zip(body.inputs[1 + count :], node.inputs[1 + count :], strict=True)
    buffers |= {value: outer[source] for value, source in captured}
    buffers |= {value: value.name for value in body.constants}
    inside: list[HostStmt] = [WriteSize(number, 0, step), scalar, *moving.bind(op.sizes)]
    for position in moving.slots:
        value = body.inputs[1 + position]
        inside.append(moving.take(position, buffers[value], value.type))
    inside += lowering.block(body, buffers, own, repeated=True)
    unreleased = lowering.unreleased
    made = body.outputs[1:]
    inside.append(Copy(go, buffers[body.outputs[0]]))
    sources = {p: (buffers[v], v.type) for p, v in enumerate(made)}
    kept = tuple(made[p] for p in fixed)
    inside += lowering.renew(kept, list(fixed.values()), buffers, own)
    inside += moving.fill(sources, f"{own}next_")
    inside += [Release(root) for root in unreleased]
    inside.append(WriteSize(steps, 0, step + ONE))
    loop = HostLoop(step.name, op.limit, tuple(inside), Load(go, (), DType.BOOL))
    outer[node.outputs[0]] = steps
    for position, value in enumerate(node.outputs[1:]):
        outer[value] = fixed.get(position, prefix + value.name)
    after = moving.bind(op.results)
    for position in moving.slots:
        value = node.outputs[1 + position]
        after.append(moving.take(position, outer[value], value.type))
    for name in (go, number, steps, *filter(None, [moving.cells]), *buffers.values()):
        lowering.touch(name)
    return [*before, loop, *after]


def lower_if(
    lowering: Lowering, node: Node, op: If, outer: dict[Value, str], prefix: str
) -> list[HostStmt]:
    """One of two bodies; see `If`."""
    own = f"{prefix}{node.outputs[0].name}_"
    moving = Moving(lowering, own, list(op.moving()))
    condition = node.inputs[0]
    for position, value in enumerate(node.outputs):
        outer[value] = prefix + value.name
        if position not in moving.slots:
            outer[value] = lowering.own(prefix + value.name, value.type)
    split = 1 + len(op.then.inputs)
    operands = ((op.then, node.inputs[1:split]), (op.other, node.inputs[split:]))
    arms = []
    for label, (body, given) in zip(("then", "else"), operands, strict=True):
        arms.append(_branch(lowering, node, moving, body, given, outer, f"{own}{label}_"))
    choice = lowering.decided.get(condition)
    if choice is None:
        place = (ZERO,) * condition.type.rank
        choice = Load(lowering.touch(outer[condition]), place, DType.BOOL)
    after = moving.bind(op.results)
    for position in moving.slots:
        value = node.outputs[position]
        after.append(moving.take(position, outer[value], value.type))
    for name in filter(None, [moving.cells, *(outer[v] for v in node.outputs)]):
        lowering.touch(name)
    return [*moving.opening(), HostIf(choice, tuple(arms[0]), tuple(arms[1])), *after]


def _branch(
    lowering: Lowering,
    node: Node,
    moving: Moving,
    body: Graph,
    given: tuple[Value, ...],
    outer: dict[Value, str],
    own: str,
) -> list[HostStmt]:
    """The statements of one branch: what it relies on, what it computes, its results."""
    own = lowering.claim(own, body)
    buffers = {inner: outer[value] for inner, value in zip(body.inputs, given, strict=True)}
    buffers |= {value: value.name for value in body.constants}
    lowering.waiting += conditions(body) + late_counts(body, lowering.given)
    opening = lowering.checks()
    around = set(lowering.arena)
    statements = lowering.block(body, buffers, own)
    unreleased = lowering.unreleased
    made = Counter(lowering.roots[lowering.touch(buffers[value])] for value in body.outputs)
    types = {buffers[value]: value.type for value in body.outputs}
    ours = {
        name
        for name in lowering.arena.keys() - around
        if made[name] == 1 and types.get(name) == lowering.arena[name].type
    }
    sources: dict[int, tuple[str, TensorType]] = {}
    puts: list[Put] = []
    for position, (value, result) in enumerate(zip(body.outputs, node.outputs, strict=True)):
        name = buffers[value]
        if name in ours:  # made here, in memory of its own, which becomes that of the result
            buffer = lowering.arena.pop(name)
            if position in moving.slots:
                opening.append(Allocate(buffer))
                puts.append(Put(moving.slots[position], name))
            else:
                opening.append(View(buffer, outer[result], ZERO))
                lowering.roots[name] = lowering.roots[outer[result]]
        elif position not in moving.slots:
            statements.append(Copy(outer[result], name))
        sources[position] = (name, value.type)
    statements += moving.fill(sources, own, put=puts)
    return [*opening, *statements, *(Release(root) for root in unreleased)]
