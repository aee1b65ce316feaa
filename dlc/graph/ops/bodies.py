"""Operators that hold graphs which the host program runs: what each body reads from around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dlc.graph.graph import Graph, Node, Value
from dlc.graph.op import Op
from dlc.graph.ops.control import If, Loop
from dlc.graph.ops.scan import Scan

LOOPS = (Scan, Loop)
HOLDERS = (*LOOPS, If)
Holder = Scan | Loop | If


@dataclass(frozen=True, slots=True)
class Captures:
    """A body, and which of the node's operands it only reads: its inputs from `first` on."""

    field: str
    body: Graph
    operand: int  # the first operand that is one of them
    first: int  # the first input of the body that is one of them

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.body.inputs) - self.first


def captures(op: Holder, ranks: Sequence[int]) -> list[Captures]:
    """The bodies of an operator in the order of its operands, which have these `ranks`."""
    match op:
        case Scan(body=body, carries=carries):
            first = carries + op.sequences(ranks)
            return [Captures("body", body, first, first)]
        case Loop(body=body, carries=carries):
            return [Captures("body", body, 1 + carries, 1 + carries)]
        case If(then=then, other=other):
            behind = 1 + len(then.inputs)
            return [Captures("then", then, 1, 0), Captures("other", other, behind, 0)]


def carried_inputs(op: Holder) -> tuple[Value, ...]:
    """The inputs of a loop's body that the step before has made; a branch has none."""
    match op:
        case Scan(body=body, carries=carries):
            return body.inputs[:carries]
        case Loop(body=body, carries=carries):
            return body.inputs[1 : 1 + carries]
        case If():
            return ()


def map_bodies(op: Op, change: Callable[[Graph], Graph]) -> Op:
    """An operator with its bodies changed; the very same one where none is."""
    if not isinstance(op, HOLDERS):
        return op
    fields = ("then", "other") if isinstance(op, If) else ("body",)
    changed = {f: change(getattr(op, f)) for f in fields}
    if all(body is getattr(op, f) for f, body in changed.items()):
        return op
    return replace(op, **changed)  # type: ignore[arg-type]  # the fields are graphs


def recapture(
    node: Node, change: Callable[[Captures, tuple[Value, ...]], tuple[Graph, tuple[Value, ...]]]
) -> Node:
    """A node with other bodies and other operands for them.

    `change` is given a body and what it captures, and returns both as they are to be.
    """
    op = node.op
    assert isinstance(op, HOLDERS), f"{op.name} holds no graph"
    found = captures(op, [v.type.rank for v in node.inputs])
    inputs = list(node.inputs[: found[0].operand])
    bodies: dict[str, Graph] = {}
    for part in found:
        given = node.inputs[part.operand : part.operand + part.count]
        bodies[part.field], kept = change(part, given)
        inputs += kept
    return replace(node, op=replace(op, **bodies), inputs=tuple(inputs))  # type: ignore[arg-type]
