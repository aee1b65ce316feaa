"""Several graphs of one model for different sizes, as one: a run takes the first that fits.

Before:
    def main(n: size, x: f32[n, 4]):        and for n == 1:   def main(z: f32[1, 4]):
        y: f32[n, 4] = relu(x)                                    u: f32[1, 4] = relu(z)
        return y                                                  return u

After:
    def main(n: size, x: f32[n, 4]):
        s: i64[()] = size_tensor(values=(1 if n == 1 else 0,), shape=())
        c: bool[()] = cast(s, to='bool')
        def then(n: size, v: f32[n, 4]):
            z: f32[1, 4] = reshape(v, shape=(1, 4))
            u: f32[1, 4] = relu(z)
            w: f32[n, 4] = reshape(u, shape=(n, 4))
            return w
        def other(n: size, x: f32[n, 4]): ...
        y: f32[n, 4] = branch(c, x, x, then=then, other=other)
        return y
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Array
from dlc.graph.ops.control import If
from dlc.graph.ops.elementwise import Identity
from dlc.graph.ops.shape import Reshape
from dlc.graph.size_conditions import ask_sizes
from dlc.graph.sizes import graph_reads
from dlc.te.expr import Expr
from dlc.te.simplify import surely_equal
from dlc.te.transform import substitute
from dlc.te.types import TensorType

Fresh = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Variant:
    """A graph that means what the general one means where a condition on its sizes holds.

    Inputs and outputs are the general graph's in order, of types that are equal there. No name of
    a value is one of the general graph's; its size variables are.
    """

    cond: Expr
    fixed: Mapping[str, Expr]
    """The size variables that have one value then."""
    graph: Graph


def choose_graph(general: Graph, variants: Sequence[Variant], fresh: Fresh) -> Graph:
    """The general graph with variants: the first whose condition holds is run."""
    whole = general
    for variant in reversed(variants):
        whole = _choose(whole, general, variant, fresh)
    return whole


def _choose(other: Graph, general: Graph, variant: Variant, fresh: Fresh) -> Graph:
    sizes = frozenset(general.sizes)
    inputs = tuple(Value(fresh(v.name), v.type) for v in general.inputs)
    constants: dict[Value, Array] = {}
    shared: dict[int, Value] = {}  # weights are one array, whichever graph reads them
    bodies = []
    for name, graph in (("then", _fitted(variant, general, fresh)), ("other", other)):
        given = list(inputs)
        for value, array in graph.constants.items():
            outer = shared.get(id(array))
            if outer is None or outer.type != value.type:
                outer = shared[id(array)] = Value(fresh(value.name), value.type)
                constants[outer] = array
            given.append(outer)
        parameters = (*graph.inputs, *graph.constants)
        body = replace(graph, name=name, inputs=parameters, constants={}, size_ranges={})
        bodies.append((replace(body, sizes=tuple(sorted(graph_reads(body) & sizes))), given))
    (then, first), (rest, second) = bodies
    number, fits = ask_sizes(variant.cond, fresh("fits"), fresh("fits"))
    op = If(then=then, other=rest)
    pairs = [
        pair
        for a, b in zip(then.outputs, rest.outputs, strict=True)
        for pair in zip(a.type.shape, b.type.shape, strict=True)
    ]
    op = replace(op, results=tuple(fresh("k") for m, n in pairs if not op.agreed(m, n)))
    names = tuple(fresh(v.name) for v in general.outputs)
    node = call(op, fits.output, *first, *second, name=names)
    return Graph(
        name=general.name,
        sizes=general.sizes,
        inputs=inputs,
        nodes=(number, fits, node),
        outputs=node.outputs,
        constants=constants,
        size_ranges=general.size_ranges,
        operators=general.operators,
    )


def _fitted(variant: Variant, general: Graph, fresh: Fresh) -> Graph:
    """A graph with the inputs of the general one, and outputs of its types where they are known."""
    graph = variant.graph
    inputs: list[Value] = []
    before: list[Node] = []
    for wanted, own in zip(general.inputs, graph.inputs, strict=True):
        if wanted.type == own.type:
            inputs.append(own)
            continue
        inputs.append(Value(fresh(own.name), wanted.type))
        before.append(call(Reshape(shape=own.type.shape), inputs[-1], name=own.name))
    outputs: list[Value] = []
    after: list[Node] = []
    for value, wanted in zip(graph.outputs, general.outputs, strict=True):
        type_ = _known(value.type, wanted.type, variant.fixed)
        op = Reshape(shape=type_.shape) if type_ != value.type else Identity()
        after.append(call(op, value, name=fresh(value.name)))
        outputs.append(after[-1].output)
    nodes = (*before, *graph.nodes, *after)
    return replace(graph, inputs=tuple(inputs), nodes=nodes, outputs=tuple(outputs))


def _known(have: TensorType, wanted: TensorType, fixed: Mapping[str, Expr]) -> TensorType:
    """The wanted sizes where they are surely those there are: a run may find out others."""
    pairs = zip(have.shape, wanted.shape, strict=True)
    shape = (n if surely_equal(substitute(n, fixed), m) else m for m, n in pairs)
    return TensorType(tuple(shape), have.dtype)
