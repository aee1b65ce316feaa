"""Which groups become one kernel of attention, and which stay apart."""

from __future__ import annotations

import pytest

from dlc.core.target import Target
from dlc.graph.attention import join_attention
from dlc.graph.fusion import groups
from dlc.graph.ops.fused import FusedGroup
from dlc.graph.pass_ import PASSES, PassContext
from dlc.graph.text import parse_graph
from tests.graph.pass_cases import AVX512, ENGINE, PAIRS, read, same

TEXT = """
def main(N: size, q: f32[2, N, 3, 5], k: f32[2, 7, 3, 5], v: f32[2, 7, 3, 5], m: f32[2, 1, N, 7]):
    a: f32[2, 3, N, 5] = transpose(q, perm=(0, 2, 1, 3))
    b: f32[2, 3, 5, 7] = transpose(k, perm=(0, 2, 3, 1))
    c: f32[2, 3, 7, 5] = transpose(v, perm=(0, 2, 1, 3))
    s: f32[2, 3, N, 7] = matmul(a, b)
    t: f32[2, 3, N, 7] = add(s, m)
    w: f32[2, 3, N, 7] = softmax(t, axis=3)
    x: f32[2, 3, N, 5] = matmul(w, c)
    y: f32[2, N, 3, 5] = transpose(x, perm=(0, 2, 1, 3))
    return y
"""
CLEANED = (
    "    x:",
    "    i: bool[2, 3, N, 7] = isnan(w)\n    o: f32[2, 3, N, 7] = where(i, m, w)\n    x:",
)


def changed(*changes: tuple[str, str]) -> str:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


def of_rows(count: int) -> tuple[tuple[str, str], ...]:
    return ("N: size, ", ""), ("N", str(count))


FROM_THE_LEFT = changed(
    ("matmul(w, c)", "matmul(c, w)"),
    *of_rows(5),
    ("x: f32[2, 3, 5, 5]", "x: f32[2, 3, 7, 7]"),
    ("y: f32[2, 5, 3, 5]", "y: f32[2, 7, 3, 7]"),
)


def kernels(text: str) -> int:
    graph = parse_graph(text)
    target = Target(features=frozenset({"avx512f"}))
    return len(join_attention(graph, groups(graph), target))


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        changed(*of_rows(6)),
        changed(("add(s, m)", "relu(s)")),
        changed(("softmax(t", "softmax(s"), ("    t: f32[2, 3, N, 7] = add(s, m)\n", "")),
        changed(CLEANED, ("matmul(w, c)", "matmul(o, c)")),
    ],
    ids=["masked", "static", "scaled", "unmasked", "cleaned"],
)
def test_scores_weights_and_values_are_one_kernel(text: str) -> None:
    assert kernels(text) == 1
    before = read(text.replace("f32[", "f64["))
    same(before, PASSES["fuse_groups"](before, AVX512), {"N": 4})


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (changed(("return y", "return y, w")), 3),
        (changed(("return y", "return y, s")), 4),
        (changed(("axis=3", "axis=2")), 3),  # the weights of a column
        (changed(*of_rows(3)), 3),  # no tile has as few rows
        (changed(("softmax(t, axis=3)", "relu(t)")), 2),
        (FROM_THE_LEFT, 3),
    ],
    ids=["weights are read", "scores are read", "columns", "few rows", "no rows", "from the left"],
)
def test_parts_stay_apart(text: str, count: int) -> None:
    assert kernels(text) == count


TWO_KINDS = """
def main(q: f32[2, 6, 5], k: f32[2, 5, 4], l: f32[2, 5, 3], v: f32[2, 7, 5], m: f32[2, 6, 4]):
    s: f32[2, 6, 4] = matmul(q, k)
    t: f32[2, 6, 3] = matmul(q, l)
    both: f32[2, 6, 7] = concat(s, t, axis=2)
    w: f32[2, 6, 7] = softmax(both, axis=2)
    x: f32[2, 6, 5] = matmul(w, v)
    return x
"""


def test_scores_of_two_kinds_lie_in_memory_of_both() -> None:
    before = read(TWO_KINDS.replace("f32[", "f64["))
    placed = PASSES["concat_by_offset"](before, AVX512)
    same(before, PASSES["fuse_groups"](placed, AVX512))


WIDE = changed(("3, 5]", "3, 32]"), ("N, 5]", "N, 32]"), ("5, 7]", "32, 7]"), ("7, 5]", "7, 32]"))
WIDE = WIDE.replace("7", "40")


@pytest.mark.parametrize(
    ("text", "planes", "product"),
    [
        (WIDE, 1, "matmul_pair"),
        (WIDE, 2, "matmul_pair"),
        (WIDE, 3, "matmul"),  # six products take longer than multiply-adds
        (WIDE, 0, "matmul"),
        (WIDE.replace("N: size, ", "").replace("N", "15"), 1, "matmul"),
        (TEXT, 1, "matmul"),  # heads of five columns fill no tile
    ],
    ids=["one plane", "two planes", "three planes", "none", "few rows", "narrow"],
)
def test_products_are_of_planes_where_the_engine_takes_them(text, planes, product) -> None:
    graph = parse_graph(text)
    target = Target(features=ENGINE)
    (members,) = join_attention(graph, groups(graph), target, planes)
    assert [n.op.name for n in members if n.op.name.startswith("matmul")] == [product] * 2


LAST = """
def main(q: f32[2, 64, 32], k: f32[2, 32, 48], v: f32[2, 48, 32]):
    s: f32[2, 64, 48] = matmul(q, k)
    p: f32[2, 64, 48] = softmax(s)
    y: f32[2, 64, 32] = matmul(p, v)
    return y
"""


@pytest.mark.parametrize(
    ("features", "product"), [(PAIRS, "matmul_pairs_computed"), (ENGINE, "matmul_pair")]
)
def test_the_last_product_may_be_the_result(features, product) -> None:
    context = PassContext(target=Target(features=features), precision="medium")
    (node,) = PASSES["fuse_groups"](parse_graph(LAST), context).nodes
    assert isinstance(node.op, FusedGroup)
    names = [n.op.name for n in node.op.body.nodes]
    assert names == [product, "softmax", product]


@pytest.mark.parametrize("keys", ["1", "2"])
def test_one_key_has_no_tiles(keys) -> None:
    text = LAST.replace("48", keys)
    graph = parse_graph(text)
    target = Target(features=PAIRS)
    found = join_attention(graph, groups(graph), target, pairs=True)
    assert len(found) == (3 if keys == "1" else 1)


@pytest.mark.parametrize(
    ("text", "pairs", "product"),
    [
        (WIDE, True, "matmul_pairs_computed"),
        (WIDE, False, "matmul"),
        (WIDE.replace("N: size, ", "").replace("N", "15"), True, "matmul"),
        (TEXT, True, "matmul_pairs_computed"),
        (TEXT.replace("5", "16"), True, "matmul"),  # as wide as a tile of an engine
        (LAST, True, "matmul_pairs_computed"),
    ],
    ids=["wide", "not wanted", "few rows", "narrow", "one tile", "unmasked"],
)
def test_products_are_of_pairs_where_they_are_wanted(text, pairs, product) -> None:
    graph = parse_graph(text)
    target = Target(features=PAIRS)
    (members,) = join_attention(graph, groups(graph), target, pairs=pairs)
    assert [n.op.name for n in members if n.op.name.startswith("matmul")] == [product] * 2
