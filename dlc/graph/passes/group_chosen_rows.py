"""Many rows that each choose a matrix of a stack are brought together by matrices.

Before:
    def main(x: f32[64, 1, 5], which: i64[64]):
        w: f32[4, 2, 5, 8] = const()
        c: f32[64, 2, 5, 8] = gather(w, which, axis=0)
        y: f32[64, 1, 12] = matmul_packed(x, c, n=12)
        return y

After:
    def main(x: f32[64, 1, 5], which: i64[64]):
        w: f32[4, 2, 5, 8] = const()
        tile_begins: i64[5] = tile_begins(which, matrices=4, rows=4)
        tiles_bound: i64[0] = bind_sizes(tile_begins, names=('tiles',), values=(index(in0[4]),))
        tile_matrix: i64[tiles]
        tile_row: i64[tiles * 4]
        row_place: i64[64]
        tile_matrix, tile_row, row_place = row_tiles(which, tile_begins, tiles=tiles, rows=4)
        y_1: f32[64, 5] = reshape(x, shape=(64, 5))
        y_2: f32[tiles * 4, 5] = gather(y_1, tile_row)
        y_3: f32[tiles, 4, 5] = reshape(y_2, shape=(tiles, 4, 5))
        y_4: f32[tiles, 2, 5, 8] = gather(w, tile_matrix)
        y_5: f32[tiles, 4, 12] = matmul_packed(y_3, y_4, n=12)
        y_6: f32[tiles * 4, 12] = reshape(y_5, shape=(tiles * 4, 12))
        y_7: f32[64, 12] = gather(y_6, row_place)
        y: f32[64, 1, 12] = reshape(y_7, shape=(64, 1, 12))
        return y

Position: after narrow_weights, the last that changes weights: a branch is given them.

A tile of rows reads its matrix once, and the tiles of a matrix one after the other; alone, each row
reads all of its matrix. Few rows mostly choose different ones, and stay as they are: of an open
number, a run decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from dlc.core.types import INDEX, DType
from dlc.graph.chosen import CHOOSE_COLUMNS, chosen
from dlc.graph.edit import GraphEditor
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Op
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.graph.ops.bodies import map_bodies
from dlc.graph.ops.control import If
from dlc.graph.ops.gather import Gather
from dlc.graph.ops.row_tiles import RowTiles, TileBegins
from dlc.graph.ops.shape import Reshape
from dlc.graph.pass_ import PassContext, graph_pass
from dlc.graph.size_conditions import ask_sizes
from dlc.graph.sizes import bodies, graph_reads, known_sizes
from dlc.te.expr import ONE, Const, Expr, Load, Var, cast, index
from dlc.te.simplify import surely_at_most, surely_less
from dlc.te.types import const_size

ROWS = 4  # of a tile: of more, more would stand empty


@graph_pass(after=("narrow_weights",))
def group_chosen_rows(graph: Graph, context: PassContext) -> Graph:
    """Put rows that choose the same matrix into tiles, in graphs inside of operators too.

    All of these share the names of sizes, so this pass walks through them by itself.
    """
    return graph if context.target.gpu is not None else _group(graph, _names(graph))


def _names(graph: Graph) -> set[str]:
    """All names of values and sizes, also in graphs inside of operators."""
    values = {v.name for n in graph.nodes for v in n.outputs}
    values |= {v.name for v in (*graph.inputs, *graph.constants)}
    inner = (_names(body) for n in graph.nodes for body in bodies(n.op))
    return values.union(known_sizes(graph), *inner)


def _group(graph: Graph, taken: set[str]) -> Graph:
    inside = [map_bodies(n.op, lambda body: _group(body, taken)) for n in graph.nodes]
    pairs = zip(graph.nodes, inside, strict=True)
    nodes = tuple(n if n.op is op else replace(n, op=op) for n, op in pairs)
    if any(a is not b for a, b in zip(nodes, graph.nodes, strict=True)):
        graph = replace(graph, nodes=nodes)
    editor = GraphEditor(graph)
    known = [*known_sizes(graph)]
    made: dict[Value, _Tiles] = {}
    for node in graph.nodes:
        if (product := _product(editor, node)) is None:
            continue
        which, matrices = product.which, const_size(product.stacks[0].type.shape[0])
        number, few = which.type.elems, matrices // 2
        if surely_at_most(number, few):
            continue
        if which not in made:
            known.append(_fresh(taken))
            made[which] = _add_tiles(editor, node, which, matrices, known[-1])
        tiled = product.by_tiles(editor, made[which])
        if surely_less(few, number):
            for each in tiled[:-1]:
                editor.add(each, at=node)
            editor.update(replace(tiled[-1], outputs=node.outputs))
        else:
            asked = ask_sizes(number <= few, editor.fresh("few_or_0"), editor.fresh("are_few"))
            for each in asked:
                editor.add(each, at=node)
            then = _body("then", product.as_it_is(editor), known)
            other = _body("other", tiled, known)
            inputs = (asked[1].output, *then.inputs, *other.inputs)
            editor.update(replace(node, op=If(then=then, other=other), inputs=inputs))
        editor.discard(node.inputs)
    return editor.finish()


def _fresh(taken: set[str]) -> str:
    """A name for a number of tiles that nothing has, and that is taken from now on."""
    numbers = (f"tiles_{number}" if number else "tiles" for number in count())
    name = next(n for n in numbers if n not in taken)
    taken.add(name)
    return name


@dataclass(frozen=True, slots=True)
class _Tiles:
    """See `RowTiles`: the matrix of each, the row in each of their places, each row's place."""

    matrix: Value
    row: Value
    place: Value


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of rows that each choose a matrix: `which` out of stacks of what makes them."""

    node: Node
    rows: tuple[Value, ...]
    stacks: tuple[Value, ...]
    which: Value

    def as_it_is(self, editor: GraphEditor) -> list[Node]:
        """The nodes that make the result of matrices of each row."""
        made = _Nodes(editor, self.node)
        made.do(self.node.op, *self.rows, *(made.pick(v, self.which) for v in self.stacks))
        return made.nodes

    def by_tiles(self, editor: GraphEditor, tiles: _Tiles) -> list[Node]:
        """The nodes that make the result of matrices of each tile."""
        made = _Nodes(editor, self.node)
        (there,), (count,) = tiles.matrix.type.shape, tiles.place.type.shape
        operands = []
        for x in self.rows:
            size = x.type.shape[-1]
            each = made.pick(made.shape(x, count, size), tiles.row)
            operands.append(made.shape(each, there, index(ROWS), size))
        chosen = [made.pick(v, tiles.matrix) for v in self.stacks]
        y = made.do(self.node.op, *operands, *chosen)
        lines = made.shape(y, there * ROWS, y.type.shape[-1])
        made.shape(made.pick(lines, tiles.place), *self.node.output.type.shape)
        return made.nodes


@dataclass(frozen=True, slots=True)
class _Nodes:
    """Nodes in the place of another one, that no graph has yet."""

    editor: GraphEditor
    at: Node
    nodes: list[Node] = field(default_factory=list)

    def do(self, op: Op, *inputs: Value) -> Value:
        """Add a node."""
        name = self.editor.fresh(self.at.output.name)
        self.nodes.append(call(op, *inputs, name=name, source=self.at.source))
        return self.nodes[-1].output

    def pick(self, x: Value, which: Value) -> Value:
        """Slices of x."""
        return self.do(Gather(axis=0), x, which)

    def shape(self, x: Value, *shape: Expr) -> Value:
        """The same elements in another shape."""
        return self.do(Reshape(shape=shape), x)


def _product(editor: GraphEditor, node: Node) -> _Product | None:
    """The product that a node is, where each row of it chooses a matrix."""
    if (count := CHOOSE_COLUMNS.get(type(node.op))) is None:
        return None
    choices = [c for v in node.inputs[count:] if (c := chosen(editor, v)) is not None]
    found = {c.inputs[1] for c in choices}
    if len(choices) != len(node.inputs) - count or len(found) != 1:
        return None
    which, stacks = found.pop(), tuple(c.inputs[0] for c in choices)
    (*chosen_by, rows, _), matrices = node.output.type.shape, stacks[0].type.shape[0]
    is_single = tuple(chosen_by) == which.type.shape and rows == ONE
    if not is_single or not isinstance(matrices, Const):
        return None
    return _Product(node, node.inputs[:count], stacks, which)


def _add_tiles(editor: GraphEditor, at: Node, which: Value, matrices: int, name: str) -> _Tiles:
    if which.type.rank > 1:
        which = editor.call(Reshape(shape=(which.type.elems,)), which, at=at, hint=which.name)
    begins = editor.call(TileBegins(matrices=matrices, rows=ROWS), which, at=at, hint="tile_begins")
    count = cast(INDEX, Load("in0", (index(matrices),), DType.I64))
    editor.add(
        call(BindSizes(names=(name,), values=(count,)), begins, name=editor.fresh(f"{name}_bound")),
        at=at,
    )
    names = tuple(editor.fresh(hint) for hint in ("tile_matrix", "tile_row", "row_place"))
    found = call(RowTiles(tiles=Var(name), rows=ROWS), which, begins, name=names)
    return _Tiles(*editor.add(found, at=at).outputs)


def _body(name: str, nodes: Sequence[Node], known: Sequence[str]) -> Graph:
    """Nodes as a branch; what they do not make themselves is given to it."""
    made = {v for n in nodes for v in n.outputs}
    inputs = tuple(dict.fromkeys(v for n in nodes for v in n.inputs if v not in made))
    body = Graph(name, (), inputs, tuple(nodes), nodes[-1].outputs)
    read = graph_reads(body)
    return replace(body, sizes=tuple(n for n in known if n in read))
