"""stack_grouped_queries keeps results, multiplies each key once, and leaves what it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dlc.core.target import Gpu, Target
from dlc.graph.pass_ import PassContext
from tests.graph.pass_cases import read, run, same

ATTENTION = """
def main(b: size, s: size, n: size, q: f64[b, 6, s, 8], k: f64[b, 2, n, 8], v: f64[b, 2, n, 8],
         mask: f64[b, 1, s, n], row: f64[n], own: f64[b, 6, s, 1]):
    low: f64[()] = const(-3)
    k_apart: f64[b, 2, 1, n, 8] = reshape(k, shape=(b, 2, 1, n, 8))
    k_many: f64[b, 2, 3, n, 8] = expand(k_apart, shape=(b, 2, 3, n, 8))
    keys: f64[b, 6, n, 8] = reshape(k_many, shape=(b, 6, n, 8))
    turned: f64[b, 6, 8, n] = transpose(keys, perm=(0, 1, 3, 2))
    v_apart: f64[b, 2, 1, n, 8] = reshape(v, shape=(b, 2, 1, n, 8))
    v_many: f64[b, 2, 3, n, 8] = expand(v_apart, shape=(b, 2, 3, n, 8))
    values: f64[b, 6, n, 8] = reshape(v_many, shape=(b, 6, n, 8))
    scores: f64[b, 6, s, n] = matmul(q, turned)
    masked: f64[b, 6, s, n] = add(scores, mask)
    lifted: f64[b, 6, s, n] = add(row, masked)
    scaled: f64[b, 6, s, n] = mul(lifted, own)
    weights: f64[b, 6, s, n] = softmax(scaled)
    seen: bool[b, 6, s, n] = less(weights, low)
    kept: f64[b, 6, s, n] = where(seen, low, weights)
    y: f64[b, 6, s, 8] = matmul(kept, values)
    return y
"""
SIZES = {"b": 2, "s": 4, "n": 5}


def changed(text, context=None):
    return run("stack_grouped_queries", read(text), context)


def operators(graph):
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize("queries", ["s", "1", "5"])
def test_rows_of_heads_that_share_keys_are_stacked(queries):
    text = ATTENTION.replace(" s: size,", "").replace(" s,", f" {queries},")
    text = ATTENTION if queries == "s" else text
    graph, found = read(text), changed(text)
    same(graph, found, SIZES if queries == "s" else {"b": 2, "n": 5})
    products = [n for n in found.nodes if n.op.name == "matmul"]
    assert [str(n.inputs[1].type.shape[1]) for n in products] == ["2", "2"]
    masks = [n for n in found.nodes if n.op.name == "expand"]
    assert len(masks) == (queries != "1")  # of no key, and of no value


def test_one_group_of_all_heads_is_stacked():
    text = ATTENTION.replace("2, n, 8]", "1, n, 8]").replace("2, 1, n", "1, 1, n")
    text = text.replace("2, 3, n", "1, 6, n")
    found = changed(text)
    same(read(text), found, SIZES)
    assert operators(found).count("expand") == 1


LEFT = {
    "the scores are a result": (("return y", "return y, masked"),),
    "keys are not turned": (
        ("turned: f64[b, 6, 8, n] = transpose(keys", "turned: f64[b, 6, 8, n] = transpose(other"),
        ("own: f64[b, 6, s, 1]", "own: f64[b, 6, s, 1], other: f64[b, 6, n, 8]"),
    ),
    "keys change places with the batch": (
        ("b: size, ", ""), ("b, ", "6, "), ("perm=(0, 1, 3, 2)", "perm=(1, 0, 3, 2)"),
    ),
    "keys are picked": (
        ("reshape(k, shape=(b, 2, 1, n, 8))", "gather(k, at, axis=2)"),
        ("own: f64[b, 6, s, 1]", "own: f64[b, 6, s, 1], at: i64[1, n]"),
    ),
    "a mask of another number of rows": (
        ("s: size, ", "s: size, r: size, "), ("mask: f64[b, 1, s, n]", "mask: f64[b, 1, r, n]"),
    ),
    "scores of several masks": (
        ("mask: f64[b, 1, s, n]", "mask: f64[4, b, 1, s, n]"),
        *((f"{name}: f64[b, 6, s, ", f"{name}: f64[4, b, 6, s, ")
          for name in ("masked", "lifted", "scaled", "weights", "kept", "y")),
        ("seen: bool[b, 6", "seen: bool[4, b, 6"),
    ),
    "weights of two products": (
        ("    return y", "    z: f64[b, 6, s, 8] = matmul(kept, values)\n    return y, z"),
    ),
    "values of each head": (
        ("matmul(kept, values)", "matmul(kept, other)"),
        ("own: f64[b, 6, s, 1]", "own: f64[b, 6, s, 1], other: f64[b, 6, n, 8]"),
    ),
    "groups of another size": (
        ("v: f64[b, 2, n", "v: f64[b, 3, n"),
        ("v_apart: f64[b, 2, 1, n, 8] = reshape(v, shape=(b, 2, 1",
         "v_apart: f64[b, 3, 1, n, 8] = reshape(v, shape=(b, 3, 1"),
        ("v_many: f64[b, 2, 3, n, 8] = expand(v_apart, shape=(b, 2, 3",
         "v_many: f64[b, 3, 2, n, 8] = expand(v_apart, shape=(b, 3, 2"),
    ),
    "heads are repeated in another order": (
        ("v_apart: f64[b, 2, 1, n, 8] = reshape(v, shape=(b, 2, 1",
         "v_apart: f64[b, 1, 2, n, 8] = reshape(v, shape=(b, 1, 2"),
        ("v_many: f64[b, 2, 3, n, 8] = expand(v_apart, shape=(b, 2, 3",
         "v_many: f64[b, 3, 2, n, 8] = expand(v_apart, shape=(b, 3, 2"),
    ),
    "groups are repeated, as many as heads of one": (
        ("6, ", "4, "), ("2, 3, n", "2, 2, n"), ("b, 2, 1, n", "b, 1, 2, n"),
    ),
    "softmax of columns": (("softmax(scaled)", "softmax(scaled, axis=2)"),),
    "a norm of each head": (
        ("softmax(scaled)", "batch_norm(scaled, gain, gain, gain, gain)"),
        ("own: f64[b, 6, s, 1]", "own: f64[b, 6, s, 1], gain: f64[6]"),
    ),
    "queries that all heads share": (("q: f64[b, 6, s, 8]", "q: f64[b, 1, s, 8]"),),
    "queries without heads": (("q: f64[b, 6, s, 8]", "q: f64[s, 8]"),),
    "several stacks of queries": (
        ("q: f64[b, 6, s, 8]", "q: f64[4, b, 6, s, 8]"),
        *((f"{name}: f64[b, 6, s, ", f"{name}: f64[4, b, 6, s, ")
          for name in ("scores", "masked", "lifted", "scaled", "weights", "kept", "y")),
        ("seen: bool[b, 6", "seen: bool[4, b, 6"),
    ),
    "a number for each head": (("own: f64[b, 6, s, 1]", "own: f64[6, 1, 1]"),),
    "scores of several rows": (
        ("masked: f64[b, 6, s, n] = add(scores, mask)",
         "sums: f64[b, 6, s, n] = cumsum(scores, axis=2)\n"
         "    masked: f64[b, 6, s, n] = add(sums, mask)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_others_stay_as_they_are(case):
    text = ATTENTION
    for old, new in LEFT[case]:
        assert old in text
        text = text.replace(old, new)
    graph = read(text)
    assert run("stack_grouped_queries", graph) == graph


def test_a_gpu_keeps_heads_apart():
    graph = read(ATTENTION)
    context = PassContext(target=replace(Target(backend="cuda"), gpu=Gpu()))
    assert run("stack_grouped_queries", graph, context) == graph
