"""Calls of the operators that walk through trees."""

from __future__ import annotations

import math

import numpy as np

from dlc.graph.ops.trees import TreeStep, TreeWalk
from tests.graph.op_case import Case, case

DEPTHS = (2, 3, 0, 1, 5)
SOME = (math.nan, -1.5, 0.0, 1.0, math.inf, 2.0, -0.0, -3.0, 0.5, -math.inf, 1.5)
SPLITS = (0.0, 1.0, -1.5, 0.5, math.inf)


def _links(depths, tests: int) -> list[list[int]]:
    """Chains of nodes of these lengths, each with a leaf at one of its sides: [nodes, 4]."""
    nodes: list[list[int]] = []
    for depth in depths:
        for _ in range(depth):
            at = len(nodes)
            sides = (at + 1, at + 2) if at % 3 else (at + 2, at + 1)
            nodes.append([at % 3, *sides, at // 2 * 5 % (2 * tests)])
            nodes.append([0, at + 1, at + 1, 0])
        nodes.append([0, len(nodes), len(nodes), 0])
    return nodes


def _walk(trees: int, rows: str, tests: tuple[str, ...], nan_holds: bool, kind: str) -> Case:
    depths = tuple(np.resize(DEPTHS, trees).tolist())
    nodes = _links(depths, len(tests))
    roots = [sum(2 * d + 1 for d in depths[:t]) for t in range(trees)]
    op = TreeWalk(tests=tests, nan_holds=nan_holds, steps=max(depths, default=0))
    types = (f"i32[{trees}]", f"i32[{trees}]", f"i32[{len(nodes)}, 4]", f"{kind}[{len(nodes)}]")
    values = (SOME, roots, depths, nodes, SPLITS)
    return case(op, f"{kind}[{rows}, 3]", *types, values=values)


def _cases() -> list[Case]:
    cases = []
    for tests in (("le",), ("lt", "ge"), ("gt", "eq", "ne")):
        for nan_holds in (False, True):
            cases.append(_walk(11, "n + 16", tests, nan_holds, "f32"))
            step = TreeStep(tests=tests, nan_holds=nan_holds)
            nodes = _links(DEPTHS, len(tests))
            tables = (f"i32[{len(nodes)}, 4]", f"f32[{len(nodes)}]")
            values = (SOME, range(0, len(nodes), 3), nodes, SPLITS)
            cases.append(case(step, "f32[n, 3]", "i32[4, 1]", *tables, values=values))
            cases.append(case(step, "f32[n, 3]", "i32[4, n]", *tables, values=values))
    return [
        *cases,
        _walk(8, "133", ("le",), True, "f64"),
        _walk(2, "n + 8", ("lt",), False, "f16"),
        _walk(3, "71", ("le",), False, "f32"),
        _walk(0, "n", ("le",), False, "f32"),
    ]


TREES = _cases()
