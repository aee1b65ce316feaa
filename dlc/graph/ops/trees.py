"""Walks through trees of decisions: from a node to one of two others, by a test of a feature.

`links` [nodes, 4] says of each node which feature it tests, where it leads to if the test fails,
where if it holds, and its kind: twice the place of its test among `tests`, and one more where the
test holds for NaN, too. A leaf leads to itself. `thresholds` [nodes] are what features are tested
against. So each step is the same few loads, and no branch waits for what data decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dlc.core.types import INDEX, DType
from dlc.graph.assume import differs
from dlc.graph.op import Array, Fuse, Op, op
from dlc.graph.ops.gather import safe_index
from dlc.graph.ops.nest import NestOp, each, each_row, lines, when
from dlc.schedule.loop import Buffer
from dlc.te import tensor as te
from dlc.te.expr import (
    ONE,
    Binary,
    BinOp,
    Const,
    Expr,
    Load,
    UnOp,
    Var,
    cast,
    ceil_div,
    const,
    equal,
    index,
    select,
    unary,
)
from dlc.te.text import print_expr
from dlc.te.types import TensorType

FEATURE, FAILS, HOLDS, KIND = range(4)
_ABREAST = 8
"""Walks whose steps do not wait for each other: one takes 20 cycles, of which it computes 3."""
_ROWS = 64
"""Rows that walk through a tree while it is in the first cache."""

_TESTS: dict[str, tuple[Callable[[Expr, Expr], Expr], Callable[[Array, Array], Array]]] = {
    "le": (lambda v, t: v <= t, np.less_equal),
    "lt": (lambda v, t: v < t, np.less),
    "ge": (lambda v, t: t <= v, np.greater_equal),
    "gt": (lambda v, t: t < v, np.greater),
    "eq": (equal, np.equal),
    "ne": (lambda v, t: Binary(BinOp.NE, v, t), np.not_equal),
}


@dataclass(frozen=True, kw_only=True)
class Trees(Op):
    """What the operators below share; `nan_holds`: whether the test of any node holds for NaN."""

    tests: tuple[str, ...]
    nan_holds: bool = False

    def check(self, x: TensorType, links: TensorType, thresholds: TensorType) -> None:
        """Refuse what is no table of nodes, and tests nobody knows."""
        operands = (x, links, thresholds)
        if not self.tests or not set(self.tests) <= set(_TESTS):
            raise self.reject(f"tests {self.tests}", *operands)
        is_table = links.dtype is DType.I32 and links.rank == 2 and links.shape[1] == index(4)
        if not is_table or thresholds.rank != 1 or differs(links.shape[0], thresholds.shape[0]):
            raise self.reject("its links and thresholds are no nodes", *operands)
        if x.rank != 2 or not x.dtype.is_float or x.dtype is not thresholds.dtype:
            raise self.reject("rows and thresholds are no floats of one type", *operands)

    def following(self, value: Expr, threshold: Expr, link: Callable[[Expr], Expr]) -> Expr:
        """The node that a node leads to; `link` reads a column of its links."""
        kind = link(index(KIND))
        *others, holds = (_TESTS[test][0](value, threshold) for test in self.tests)
        for place, other in reversed(list(enumerate(others))):
            holds = select(kind < const(2 * place + 2, DType.I32), other, holds)
        side = cast(DType.I32, holds)
        if self.nan_holds:
            nan = cast(DType.I32, unary(UnOp.ISNAN, value))
            side = Binary(BinOp.BITOR, side, Binary(BinOp.BITAND, nan, kind))
        return link(cast(INDEX, side) + FAILS)

    def follow(self, x: Array, at: Array, links: Array, thresholds: Array) -> Array:
        """The nodes [trees, rows] that nodes lead to, in NumPy."""
        value, kind = x[np.arange(len(x)), links[at, FEATURE]], links[at, KIND]
        tests = [_TESTS[test][1](value, thresholds[at]) for test in self.tests]
        holds = np.choose(kind // 2, tests, mode="clip")
        if self.nan_holds:
            holds = holds | (np.isnan(value) & (kind % 2 == 1))
        return np.asarray(np.where(holds, links[at, HOLDS], links[at, FAILS]).astype(np.int32))


@op("tree_step", fuse=Fuse.OPAQUE)
class TreeStep(Trees):
    """One step from a node of each tree, for each row.

    Shapes:
        x: [n, features]; at: i32[trees, n] or [trees, 1]; links: i32[nodes, 4];
        thresholds: [nodes], of the type of x -> i32[trees, n]
    """

    def infer(
        self, x: TensorType, at: TensorType, links: TensorType, thresholds: TensorType
    ) -> TensorType:
        self.check(x, links, thresholds)
        if at.rank != 2 or at.dtype is not DType.I32:
            raise self.reject("needs a node of each tree", x, at)
        if at.shape[1] != ONE and differs(at.shape[1], x.shape[0]):
            raise self.reject("nodes are not those of the rows", x, at)
        return TensorType((at.shape[0], x.shape[0]), DType.I32)

    def compute(
        self, x: te.Tensor, at: te.Tensor, links: te.Tensor, thresholds: te.Tensor
    ) -> te.Tensor:
        def element(tree: Expr, row: Expr) -> Expr:
            here = at[tree, 0 if at.shape[1] == ONE else row]
            node = safe_index(here, links.shape[0])
            feature = safe_index(links[node, FEATURE], x.shape[1])
            return self.following(x[row, feature], thresholds[node], lambda c: links[node, c])

        shape = self.infer(x.type, at.type, links.type, thresholds.type).shape
        return te.compute(self.name, shape, element, inputs=(x, at, links, thresholds))

    def reference(self, x: Array, at: Array, links: Array, thresholds: Array) -> Array:
        return self.follow(x, np.broadcast_to(at, (len(at), len(x))), links, thresholds)


@op("tree_walk", fuse=Fuse.OPAQUE)
class TreeWalk(Trees, NestOp):
    """The leaf of each tree that each row reaches, `steps` below the roots at most.

    Links lead to nodes that are there, and to features that are. Several rows walk through one
    tree side by side; the last ones each through several trees.

    Shapes:
        x: [n, features]; roots: i32[trees]; depths: i32[trees], the steps of each;
        links: i32[nodes, 4]; thresholds: [nodes], of the type of x -> i32[trees, n]
    """

    steps: int

    def infer(
        self,
        x: TensorType,
        roots: TensorType,
        depths: TensorType,
        links: TensorType,
        thresholds: TensorType,
    ) -> TensorType:
        self.check(x, links, thresholds)
        if {roots.dtype, depths.dtype} != {DType.I32} or roots.rank != 1 or depths != roots:
            raise self.reject("needs a root and a depth of each tree", roots, depths)
        if not isinstance(roots.shape[0], Const):
            raise self.reject("the number of trees is open", roots)
        return TensorType((roots.shape[0], x.shape[0]), DType.I32)

    def nest(self, inputs: tuple[Buffer, ...], outputs: tuple[Buffer, ...]) -> str:
        depths, (out,) = inputs[2], outputs
        trees, rows = out.type.shape
        assert isinstance(trees, Const), "their number is known"
        lanes = min(int(trees.value), _ABREAST)

        def through(name: str, first: str, count: Expr) -> str:
            """Groups of rows, each tree by tree."""
            row = f"{first} + {name}_group * {_ABREAST} + LANE"
            depth = f"index({depths.name}[{name}_tree])"
            walk = self._walk(name, inputs, out, row, f"{name}_tree", _ABREAST, depth)
            return each(f"{name}_tree", trees, each(f"{name}_group", count, walk))

        tree = f"min(one_group * {lanes}, {trees} - {lanes}) + LANE"  # the last ones overlap
        last = f"({rows}) // {_ABREAST} * {_ABREAST} + one"
        walk = self._walk("one", inputs, out, last, tree, lanes, f"{self.steps}")
        return lines(
            each_row(
                rows // _ROWS,
                out.type.elems,
                through("many", f"r * {_ROWS}", index(_ROWS // _ABREAST)),
            ),
            through("few", f"({rows}) // {_ROWS} * {_ROWS}", rows % _ROWS // _ABREAST),
            each("one", rows % _ABREAST, each("one_group", ceil_div(trees, lanes), walk)),
        )

    def _walk(
        self,
        name: str,
        inputs: tuple[Buffer, ...],
        out: Buffer,
        row: str,
        tree: str,
        count: int,
        depth: str,
    ) -> str:
        """Walks side by side; `LANE` stands for one of them in its row and its tree."""
        x, roots, _, links, thresholds = inputs
        nodes = f"{name}_nodes"
        node = cast(INDEX, Load(nodes, (Var("LANE"),), DType.I32))

        def link(column: Expr) -> Expr:
            return Load(links.name, (node, column), DType.I32)

        def lane(part: str, body: str) -> str:
            var = f"{name}_{part}"
            return each(var, count, body.replace("LANE", var), "unroll")

        value = Load(x.name, (Var("ROW"), cast(INDEX, link(index(FEATURE)))), x.type.dtype)
        threshold = Load(thresholds.name, (node,), x.type.dtype)
        following = print_expr(self.following(value, threshold, link)).replace("ROW", row)
        step = lane("next", f"{nodes}[LANE] = {following}")
        return lines(
            f'{nodes} = alloc(i32[{count}], "register")',
            lane("first", f"{nodes}[LANE] = {roots.name}[{tree}]"),
            each(f"{name}_step", self.steps, when(f"{name}_step < {depth}", step)),
            lane("last", f"{out.name}[{tree}, {row}] = {nodes}[LANE]"),
        )

    def reference(
        self, x: Array, roots: Array, depths: Array, links: Array, thresholds: Array
    ) -> Array:
        at = np.broadcast_to(roots[:, None], (len(roots), len(x))).astype(np.int32)
        for step in range(self.steps):
            deeper = (step < depths)[:, None]
            at = np.where(deeper, self.follow(x, at, links, thresholds), at)
        return at
