"""Graphs in nodes, If, Loop and Scan, and sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from dlc.testing.draft import DiscardError, Draft, Known
from dlc.testing.recipes.recipe import Recipe, axis_of

_STEPS = ("Add", "Sub", "Mul", "Max", "Min")


def _float(name: str, rank: int) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)


def _chain(draft: Draft, names: list[str], result: str, count: int) -> list[NodeProto]:
    """Nodes that combine values into one, each result with one of them."""
    nodes: list[NodeProto] = []
    last = names[0]
    for i in range(count):
        made = result if i == count - 1 else draft.name("t")
        other = draft.rng.choice(names)
        nodes.append(helper.make_node(draft.rng.choice(_STEPS), [last, other], [made]))
        last = made
    return nodes


def _image(draft: Draft) -> Known:
    """Values of a model that a graph reads, all of one shape."""
    return draft.pick(dtypes=("float32",), smallest=1)


def _branch(draft: Draft, reads: list[Known]) -> GraphProto:
    result = draft.name("b")
    nodes = _chain(draft, [v.name for v in reads], result, draft.rng.randint(1, 3))
    return helper.make_graph(nodes, "branch", [], [_float(result, reads[0].rank)])


def _if(draft: Draft, op: str) -> None:
    """Both branches give the same shape; the condition is given, computed or constant."""
    a = _image(draft)
    reads = [a, draft.make("float32", a.shape)]
    cond = draft.make("bool", ())
    if draft.rng.random() < 0.3:
        cond = draft.add("Not", [cond])[0]
    then, other = _branch(draft, reads), _branch(draft, reads)
    made = draft.name("v")
    node = helper.make_node("If", [cond.name], [made], then_branch=then, else_branch=other)
    draft.add_nodes([node], [cond, *reads], [made])


def _loop(draft: Draft, op: str) -> None:
    """Two carried values, which may change places, one captured, and a result of every step.

    Sometimes it ends early.
    """
    a = _image(draft)
    b, captured = draft.make("float32", a.shape), draft.make("float32", a.shape)
    count = draft.make("int64", (), 0 if draft.rng.random() < 0.2 else 1, 4)
    step, goes_on, first, second = (draft.name(n) for n in ("step", "cond", "first", "second"))
    after, still, out, other = (draft.name(n) for n in ("after", "still", "out", "other"))
    nodes = _chain(draft, [first, captured.name, second], after, draft.rng.randint(1, 2))
    reads = [count, a, b, captured]
    if draft.rng.random() < 0.3:
        limit = draft.make("int64", (), 0, 3)
        reads.append(limit)
        nodes.append(helper.make_node("Less", [step, limit.name], [still]))
    else:
        nodes.append(helper.make_node("Identity", [goes_on], [still]))
    nodes.append(helper.make_node("Neg", [after], [out]))
    nodes.append(helper.make_node("Identity", [first], [other]))
    same = draft.name("same")  # a result of a graph is made in it
    nodes.append(helper.make_node("Identity", [second], [same]))
    new = draft.rng.choice(((after, same), (other, after), (same, other)))
    flags = (TensorProto.INT64, step), (TensorProto.BOOL, goes_on)
    body = helper.make_graph(
        nodes,
        "body",
        [
            *(helper.make_tensor_value_info(name, kind, []) for kind, name in flags),
            *(_float(name, a.rank) for name in (first, second)),
        ],
        [
            helper.make_tensor_value_info(still, TensorProto.BOOL, []),
            *(_float(name, a.rank) for name in (*new, out)),
        ],
    )
    begin = draft.constant(np.asarray(True))
    made = [draft.name("v") for _ in range(3)]
    node = helper.make_node("Loop", [count.name, begin.name, a.name, b.name], made, body=body)
    draft.add_nodes([node], [begin, *reads], made)


def _scan(draft: Draft, op: str) -> None:
    """Two carried values, which may change places, one or two sequences along any axes.

    Sequences are read and written either way.
    """
    shape = draft.shape(draft.rng.choice((1, 2)), 1)
    states = [draft.make("float32", shape) for _ in range(2)]
    length, rank = draft.rng.randint(1, 5), len(shape)
    number = draft.rng.randint(1, 2)
    axes = [draft.rng.randint(0, rank) for _ in range(number)]
    given = [draft.make("float32", (*shape[:a], length, *shape[a:])) for a in axes]
    first, second, after, out = (draft.name(n) for n in ("first", "second", "after", "out"))
    elements = [draft.name("element") for _ in given]
    nodes = _chain(draft, [first, second, *elements], after, draft.rng.randint(1, 3))
    nodes.append(helper.make_node("Sub", [after, elements[-1]], [out]))
    same = {name: draft.name("same") for name in (first, second)}
    nodes += [helper.make_node("Identity", [old], [new]) for old, new in same.items()]
    pairs = (after, same[second]), (same[second], after), (same[second], same[first])
    new = draft.rng.choice(pairs)
    body = helper.make_graph(
        nodes,
        "body",
        [_float(n, rank) for n in (first, second, *elements)],
        [_float(n, rank) for n in (*new, out)],
    )
    made = [draft.name("v") for _ in range(3)]
    node = helper.make_node(
        "Scan",
        [v.name for v in (*states, *given)],
        made,
        body=body,
        num_scan_inputs=number,
        scan_input_axes=axes,
        scan_input_directions=[draft.rng.randint(0, 1) for _ in given],
        scan_output_axes=[draft.rng.randint(0, rank)],
        scan_output_directions=[draft.rng.randint(0, 1)],
    )
    draft.add_nodes([node], [*states, *given], made)


def _split(draft: Draft, op: str) -> None:
    """A sequence of parts: one of them, all of them joined, or how many there are."""
    a = draft.pick("f", smallest=1)
    if not a.rank:
        raise DiscardError("a number has no parts")
    axis = axis_of(draft, a.rank)
    keep = draft.rng.randint(0, 1)
    parts, made = draft.name("s"), draft.name("v")
    nodes = [helper.make_node("SplitToSequence", [a.name], [parts], axis=axis, keepdims=keep)]
    reads = [a]
    match draft.rng.randrange(3):
        case 0:
            size = a.shape[axis]
            at = draft.constant(np.asarray(draft.rng.randrange(-size, size), np.int64))
            reads.append(at)
            nodes.append(helper.make_node("SequenceAt", [parts, at.name], [made]))
        case 1:
            new = int(not keep)
            nodes.append(
                helper.make_node("ConcatFromSequence", [parts], [made], axis=0, new_axis=new)
            )
        case _:
            nodes.append(helper.make_node("SequenceLength", [parts], [made]))
    draft.add_nodes(nodes, reads, [made], exact=True)


def _sequence(draft: Draft, op: str) -> None:
    """Values in a sequence, one put in or taken out, joined or picked."""
    a = draft.pick("f", smallest=1)
    values = [a, *(draft.like(a, broadcast=False) for _ in range(draft.rng.randint(1, 2)))]
    first, last, made = draft.name("s"), draft.name("s"), draft.name("v")
    nodes = [helper.make_node("SequenceConstruct", [v.name for v in values], [first])]
    reads = list(values)
    at = draft.constant(np.asarray(draft.rng.randrange(len(values)), np.int64))
    reads.append(at)
    if draft.rng.random() < 0.5:
        nodes.append(helper.make_node("SequenceErase", [first, at.name], [last]))
    else:
        nodes.append(helper.make_node("SequenceInsert", [first, a.name, at.name], [last]))
    if draft.rng.random() < 0.5:
        join = helper.make_node("ConcatFromSequence", [last], [made], axis=0, new_axis=1)
        nodes.append(join)
    else:
        begin = draft.constant(np.asarray(draft.rng.choice((0, -1)), np.int64))
        reads.append(begin)
        nodes.append(helper.make_node("SequenceAt", [last, begin.name], [made]))
    draft.add_nodes(nodes, reads, [made], exact=True)


CONTROL = (
    Recipe(("If",), _if, 0.8),
    Recipe(("Loop",), _loop, 0.8),
    Recipe(("Scan",), _scan, 0.8),
    Recipe(("SplitToSequence",), _split, 0.5),
    Recipe(("SequenceConstruct",), _sequence, 0.5),
)
