"""A scan as a loop of the host program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlc.graph.graph import Node, Value
from dlc.graph.ops.scan import Scan
from dlc.schedule.program import Copy, HostLoop, HostStmt, Release
from dlc.te.expr import ZERO, Var

if TYPE_CHECKING:
    from dlc.graph.lower import Lowering


def lower_scan(
    lowering: Lowering, node: Node, scan: Scan, outer: dict[Value, str], prefix: str
) -> list[HostStmt]:
    """The loop of a scan: carries live in buffers that each step replaces; sequences are views.

    `outer` holds the buffers of the values around, and those of the results when it returns.
    """
    body, count = scan.body, scan.carries
    own = lowering.claim(f"{prefix}{node.outputs[0].name}_", body)
    step = Var(lowering.unused(f"{own}t"))
    reads = node.inputs[count:]
    stacked = [v for v in reads[: len(body.inputs) - count] if _is_sequence(v, node, scan)]
    steps = (stacked[0] if stacked else node.outputs[count]).type.shape[0]
    at = steps - 1 - step if scan.reverse else step
    before: list[HostStmt] = []
    inside: list[HostStmt] = []
    buffers: dict[Value, str] = {}
    for value, start in zip(body.inputs[:count], node.inputs[:count], strict=True):
        buffers[value] = lowering.own(own + value.name, value.type)
        before.append(Copy(buffers[value], lowering.touch(outer[start])))
    for value, source in zip(body.inputs[count:], reads, strict=True):
        if _is_sequence(source, node, scan):
            offset = at * value.type.elems
            inside.append(lowering.view(own + value.name, value.type, outer[source], offset))
            buffers[value] = own + value.name
        else:
            buffers[value] = outer[source]
    buffers |= {value: value.name for value in body.constants}
    carried = [buffers[v] for v in body.inputs[:count]]
    rows: list[tuple[Value, str]] = []
    for value, result in zip(body.outputs[count:], node.outputs[count:], strict=True):
        outer[result] = lowering.own(prefix + result.name, result.type)
        row = lowering.unused(f"{own}{result.name}_row")
        inside.append(lowering.view(row, value.type, outer[result], at * value.type.elems))
        rows.append((value, row))
    inside += lowering.block(body, buffers, own, repeated=True)
    unreleased = lowering.unreleased
    inside += [Copy(row, buffers[value]) for value, row in rows]
    inside += lowering.renew(body.outputs[:count], carried, buffers, own)
    inside += map(Release, unreleased)
    outer |= zip(node.outputs[:count], carried, strict=True)
    for name in (*carried, *buffers.values()):
        lowering.touch(name)
    if steps == ZERO:
        return before  # even one step would look beyond the end of what is read and made
    return [*before, HostLoop(step.name, steps, tuple(inside))]


def _is_sequence(value: Value, node: Node, scan: Scan) -> bool:
    """Whether an operand of a scan is read one step at a time: its body sees one rank less."""
    position = node.inputs.index(value)
    return scan.body.inputs[position].type.rank == value.type.rank - 1
