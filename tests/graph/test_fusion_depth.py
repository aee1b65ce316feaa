"""How far groups are fused can be chosen; the results stay what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

import dlc
from dlc.autotune.apply import Records
from dlc.autotune.decision import Decision
from dlc.core.fork import Choices, Fork, Way
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.graph.estimate import CALL, bytes_of, elements, node_cycles, size_of
from dlc.graph.fusion import groups
from dlc.graph.fusion_depth import depth_of
from dlc.graph.fusion_views import stored_views
from dlc.graph.pass_ import PassContext
from dlc.lowering import lower_model
from dlc.te.text import parse_expr
from tests.cli.models import model
from tests.graph.pass_cases import read

CONTEXT = PassContext(target=Target(features=frozenset({"avx512f"})))
CHAIN = """
def main(x: f32[6, 9], r: f32[6, 7]):
    w: f32[9, 7] = const()
    b: f32[7] = const()
    m: f32[6, 7] = matmul(x, w)
    s: f32[6, 7] = add(m, b)
    t: f32[6, 7] = add(s, r)
    y: f32[6, 7] = relu(t)
    p: f32[8, 7] = pad(y, before=(1, 0), after=(1, 0))
    return p
"""


def asked(text, choices=None):
    """The groups of a graph, and what is decided about them."""
    found: list[Fork] = []
    context = replace(CONTEXT, on_fork=found.append, choices=choices or Choices())
    graph = read(text)
    return [[n.op.name for n in g] for g in groups(graph, depth_of(graph, context))], found


def test_fusion_ends_where_a_group_would_read_or_move_more():
    whole, (fork,) = asked(CHAIN)
    assert whole == [["matmul", "add", "add", "relu", "pad"]]
    # Before what is read (r) and before the pad; not between the sum and its constant bias.
    assert (fork.options, fork.default) == (("1", "3", "4"), "4")
    parts, _ = asked(CHAIN, Choices({fork.key: Way("1", "4")}))
    assert parts == [["matmul", "add"], ["add", "relu", "pad"]]
    parts, _ = asked(CHAIN, Choices({fork.key: Way("3", "4")}))
    assert parts == [["matmul", "add", "add", "relu"], ["pad"]]


def test_estimates_count_what_is_written_and_read_again():
    (fork,) = asked(CHAIN)[1]
    near, far = fork.cycles_of("4"), fork.cycles_of("1")
    assert far - near == pytest.approx(2 * 6 * 7 * 4 / 8 + CALL)
    graph = read(CHAIN)
    matmul = graph.nodes[0]
    moved = bytes_of((*matmul.inputs, matmul.output))
    expected = 6 * 7 * 9 / (2 * 16 * 0.8) + moved / 8 + CALL
    assert node_cycles([matmul], CONTEXT.target) == pytest.approx(expected)
    assert elements(graph.outputs[0]) == 56


@pytest.mark.parametrize(
    ("size", "wanted"),
    [("7", 7), ("0", 0), ("n", 64), ("n // 2 * m", 2048), ("n - 100", 1), ("n // (m - 64)", 64)],
)
def test_each_variable_of_a_size_is_taken_for_so_many(size: str, wanted: int) -> None:
    assert size_of(parse_expr(size)) == wanted


def test_chains_without_sums_are_no_decision():
    text = """
def main(x: f32[6, 7], r: f32[6, 7]):
    s: f32[6, 7] = add(x, r)
    y: f32[6, 7] = relu(s)
    z: f32[6, 7] = mul(y, r)
    return z
"""
    assert asked(text) == ([["add", "relu", "mul"]], [])


def residual():
    """Two convolutions with an addition behind, and a softmax over their mean."""
    rng = np.random.default_rng(0)
    weights = [rng.integers(-2, 3, (24, 24, 3, 3)).astype(np.float32) for _ in range(2)]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        helper.make_node("Add", ["a", "x"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w1"], ["d"], pads=[1] * 4),
        helper.make_node("Concat", ["d", "c"], ["e"], axis=1),
        helper.make_node("MaxPool", ["e"], ["f"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("Add", ["f", "e"], ["y"]),
    ]
    constants = [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)]
    return model(nodes, ["x"], ["y"], constants, (1, 24, 9, 11), (1, 48, 9, 11))


@pytest.mark.thorough
def test_all_depths_give_the_same_results():
    source, target = residual(), parse_target("native")
    forks = dict.fromkeys(lower_model(source, target, lists_forks=True).forks)
    fusions = [f for f in forks if f.kind == "fusion"]
    assert len(fusions) >= 2
    x = np.random.default_rng(1).integers(-3, 4, (1, 24, 9, 11)).astype(np.float32)
    expected = dlc.compile(source, target, tuning="none")(x)
    kernels = len(lower_model(source, target).program.kernels)
    for number in range(max(len(f.others) for f in fusions)):
        ways = [Decision(f, f.others[min(number, len(f.others) - 1)], 1.2, 1.1) for f in fusions]
        records = Records(decisions={d.key: d for d in ways})
        changed = lower_model(source, target, choices=records.ways)
        assert len(changed.program.kernels) > kernels
        np.testing.assert_array_equal(dlc.compile(source, target, tuning=records)(x), expected)


VIEW = """
def main(x: f32[6, 9], w: f32[7, 9]):
    t: f32[9, 7] = transpose(w, perm=(1, 0))
    m: f32[6, 7] = matmul(x, t)
    y: f32[6, 7] = relu(m)
    return y
"""


def test_a_view_may_be_stored_before_what_reads_its_lines():
    def found(text, choices):
        forks: list[Fork] = []
        context = replace(CONTEXT, on_fork=forks.append, choices=choices)
        graph = read(text)
        parts = groups(graph, is_stored=stored_views(graph, context))
        return [[n.op.name for n in g] for g in parts], forks

    copied, (fork,) = found(VIEW, Choices())
    assert copied == [["transpose", "matmul", "relu"]]
    assert (fork.options, fork.default) == (("copied", "stored"), "copied")
    stored, _ = found(VIEW, Choices({fork.key: Way("stored", "copied")}))
    assert stored == [["transpose"], ["matmul", "relu"]]
    assert fork.cycles_of("stored") - fork.cycles_of("copied") == pytest.approx(504 / 8 + CALL)
    lone = VIEW.replace("    m: f32[6, 7] = matmul(x, t)\n", "").replace("relu(m)", "relu(t)")
    assert found(lone.replace("y: f32[6, 7]", "y: f32[9, 7]"), Choices())[1] == []


def test_stored_views_give_the_same_results():
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"], axis=-1),
        helper.make_node("Add", ["p", "s"], ["q"]),
        helper.make_node("MatMul", ["q", "x"], ["y"]),
    ]
    shape, target = (3, 11, 13), parse_target("native")
    source = model(nodes, ["x"], ["y"], [], shape, shape)
    forks = [f for f in lower_model(source, target, lists_forks=True).forks if f.kind == "view"]
    assert forks
    ways = [Decision(f, "stored", 1.2, 1.1) for f in dict.fromkeys(forks)]
    records = Records(decisions={d.key: d for d in ways})
    assert lower_model(source, target, choices=records.ways).decided == len(forks)
    x = np.random.default_rng(1).integers(-3, 4, (3, 11, 13)).astype(np.float32)
    plain, stored = (dlc.compile(source, target, tuning=t)(x) for t in ("none", records))
    np.testing.assert_allclose(stored, plain, rtol=1e-5, atol=1e-5)  # exp of sums in other order
