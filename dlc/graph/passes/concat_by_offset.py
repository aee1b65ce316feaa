"""Let the kernels that make the parts of a concatenation write straight into the result.

Before:
    def main(x: f32[3, 4], y: f32[3, 5]):
        a: f32[3, 4] = relu(x)
        b: f32[3, 5] = exp(y)
        c: f32[3, 4] = neg(a)
        z: f32[3, 9] = concat(a, b, axis=1)
        return z, c

After:
    def main(x: f32[3, 4], y: f32[3, 5]):
        a: f32[3, 4] = relu(x)
        z_memory: f32[3, 9] = empty(shape=(3, 9))
        z_part: f32[3, 9] = insert(z_memory, a, offset=(0, 0))
        b: f32[3, 5] = exp(y)
        z: f32[3, 9] = insert(z_part, b, offset=(0, 4))
        a_view: f32[3, 4] = slice(z_part, starts=(0, 0), sizes=(3, 4))
        c: f32[3, 4] = neg(a_view)
        return z, c

Position: after share_halos, which gives parts the halo of the whole; before fuse_groups, which
joins an insert to the kernel that makes the part.

All inserts of a chain share one memory, and each element of it is written once: a value of the
chain may be read as long as only its finished parts are, which is what views of it do. Parts that
no kernel of the model makes (inputs, constants, reshapes, parts of other concatenations) are copied
last.

Concatenations that begin with all parts of another one (DenseNet) share its memory: the shorter is
a view of the longer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Op
from dlc.graph.ops.shape import Concat, Empty, Insert, Slice
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.sizes import bound_sizes, known_sizes, names_in
from dlc.graph.views import reads_views, root_of, writes_boxes
from dlc.te.expr import ZERO, Const, Expr
from dlc.te.simplify import canonical

SMALL_ELEMS = 1024
"""A concatenation of less than this, of parts that must be copied anyway, is one small kernel."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one concatenation is built."""

    node: Node
    owned: tuple[int, ...]  # positions of parts written in place, in the order they are made
    copied: tuple[int, ...]  # positions of the others
    prefixes: tuple[Node, ...]  # concatenations that are views of this one, the longest last

    @property
    def axis(self) -> int:
        """The axis, counted from the front."""
        assert isinstance(self.node.op, Concat)
        return self.node.op.axis % self.node.output.type.rank

    def offset(self, position: int) -> tuple[Expr, ...]:
        """Where a part begins."""
        start: Expr = ZERO
        for value in self.node.inputs[:position]:
            start = start + value.type.shape[self.axis]
        rank = self.node.output.type.rank
        return tuple(canonical(start) if d == self.axis else ZERO for d in range(rank))


@graph_pass(after=("share_halos",), bodies=True)
def concat_by_offset(graph: Graph, context: PassContext) -> Graph:
    """Replace concatenations by inserts."""
    plans = _plans(graph)
    return _Writer(graph, plans).run() if plans else graph


def _plans(graph: Graph) -> list[_Plan]:
    order = {id(n): i for i, n in enumerate(graph.nodes)}
    concats = [n for n in graph.nodes if isinstance(n.op, Concat) and len(n.inputs) > 1]
    views: dict[int, list[Node]] = {}  # the longer concatenation -> those that are views of it
    inner: set[int] = set()
    for node in concats:
        longer = _longer(graph, node, concats, order)
        if longer is not None:
            views.setdefault(id(longer), []).append(node)
            inner.add(id(node))
    plans: list[_Plan] = []
    taken: set[Value] = set()
    for node in concats:
        if id(node) in inner:
            continue
        plan = _plan(graph, node, order, taken, tuple(views.get(id(node), ())))
        if plan is not None:
            plans.append(plan)
            taken.update(node.inputs[i] for i in plan.owned)
    return plans


def _longer(graph: Graph, node: Node, concats: list[Node], order: dict[int, int]) -> Node | None:
    """The longest concatenation that begins with the parts of this one, made in that order."""
    count = len(node.inputs)
    found = [
        c
        for c in concats
        if c.op == node.op
        and len(c.inputs) > count
        and c.inputs[:count] == node.inputs
        and len(set(c.inputs)) == len(c.inputs)
        and all(_is_owned(graph, v, c) for v in c.inputs)
        and _positions(graph, c, order) == sorted(_positions(graph, c, order))
    ]
    if not found or node.output in graph.outputs:
        return None
    if not all(reads_views(u) for u in graph.users.get(node.output, ())):
        return None
    return max(found, key=lambda c: len(c.inputs))


def _positions(graph: Graph, node: Node, order: dict[int, int]) -> list[int]:
    return [order[id(graph.producers[v])] for v in node.inputs]


def _is_owned(graph: Graph, value: Value, concat: Node) -> bool:
    """Whether a part can be made inside of a concatenation, as far as its readers go."""
    producer = graph.producers.get(value)
    if value in graph.outputs or not writes_boxes(producer):
        return False
    if producer is not None and isinstance(producer.op, Concat):
        return False  # it has memory of its own; simplify_shapes joins nested ones where it can
    users = graph.users[value]
    return all(u is concat or isinstance(u.op, Concat) or reads_views(u) for u in users)


def _plan(
    graph: Graph,
    node: Node,
    order: dict[int, int],
    taken: set[Value],
    prefixes: tuple[Node, ...],
) -> _Plan | None:
    if names_in(node.output.type.shape) & set(bound_sizes(graph.nodes)):
        return None  # its memory would be made before the first part is: before its size is known
    roots = [root_of(graph, v) for v in node.inputs]
    positions = range(len(node.inputs))
    owned = [
        i
        for i in positions
        if node.inputs[i] not in taken and _is_owned(graph, node.inputs[i], node)
    ]
    if any(roots.count(node.inputs[i]) > 1 for i in owned):
        return None  # a kernel would read and write the same memory
    elems = node.output.type.elems
    small = isinstance(elems, Const) and elems.value < SMALL_ELEMS
    if not owned and small:
        return None
    owned.sort(key=lambda i: order[id(graph.producers[node.inputs[i]])])
    copied = tuple(i for i in positions if i not in owned)
    return _Plan(node, tuple(owned), copied, prefixes)


class _Writer:
    """Writes the new graph."""

    def __init__(self, graph: Graph, plans: list[_Plan]) -> None:
        self.graph = graph
        self.plans = plans
        self.nodes: list[Node] = []
        self.chain: dict[int, Value] = {}  # id of a concatenation -> the chain's last value
        self.owner = {p.node.inputs[i].name: (p, i) for p in plans for i in p.owned}
        self.whole = {id(p.node): p for p in plans}
        self.part_of = {id(n): p for p in plans for n in p.prefixes}
        self.views: dict[str, tuple[Value, tuple[Expr, ...]]] = {}  # value -> where it is now
        self.made: dict[str, Value] = {}
        self.names = {v.name for v in (*graph.inputs, *graph.constants)} | set(known_sizes(graph))
        self.names |= {v.name for n in graph.nodes for v in n.outputs}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            if id(node) in self.whole:
                self.finish(self.whole[id(node)])
            elif id(node) in self.part_of:
                plan = self.part_of[id(node)]
                self.views[node.output.name] = (self.chain[id(plan.node)], plan.offset(0))
            else:
                self.nodes.append(replace(node, inputs=tuple(self.read(v) for v in node.inputs)))
                for value in node.outputs:
                    if value.name in self.owner:
                        self.insert(*self.owner[value.name])
        return replace(self.graph, nodes=tuple(self.nodes))

    def insert(self, plan: _Plan, position: int) -> None:
        """Put a part into its place; from now on it is read there."""
        part = plan.node.inputs[position]
        piece = part if position in plan.owned else self.read(part)
        last = (*plan.owned, *plan.copied)[-1] == position
        name = plan.node.output.name if last else self.fresh(f"{plan.node.output.name}_part")
        base = self.chain.get(id(plan.node)) or self.memory(plan)
        op = Insert(offset=plan.offset(position))
        self.nodes.append(call(op, base, piece, name=name, source=plan.node.source))
        self.chain[id(plan.node)] = self.nodes[-1].output
        if position in plan.owned:
            self.views[part.name] = (self.nodes[-1].output, plan.offset(position))

    def memory(self, plan: _Plan) -> Value:
        """The tensor that the parts are put into."""
        type_ = plan.node.output.type
        op = Empty(shape=type_.shape, dtype=type_.dtype)
        return self.call(op, hint=f"{plan.node.output.name}_memory", at=plan.node)

    def finish(self, plan: _Plan) -> None:
        """Copy the parts that are made elsewhere; the last insert has the result's name."""
        for position in plan.copied:
            self.insert(plan, position)

    def read(self, value: Value) -> Value:
        """A value, or a view of it where it was put."""
        if value.name not in self.views:
            return value
        if value.name not in self.made:
            whole, starts = self.views[value.name]
            op: Op = Slice(starts=starts, sizes=value.type.shape)
            at = self.graph.producers[value]
            self.made[value.name] = self.call(op, whole, hint=f"{value.name}_view", at=at)
        return self.made[value.name]

    def call(self, op: Op, *inputs: Value, hint: str, at: Node) -> Value:
        """Add a node of one result."""
        self.nodes.append(call(op, *inputs, name=self.fresh(hint), source=at.source))
        return self.nodes[-1].output

    def fresh(self, hint: str) -> str:
        """A name nobody has."""
        name, count = hint, 1
        while name in self.names:
            count += 1
            name = f"{hint}_{count}"
        self.names.add(name)
        return name
