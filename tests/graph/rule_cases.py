"""What the tests of rules share: graphs before and after a rule, and what is claimed of them."""

from __future__ import annotations

from dlc.core.target import Gpu, Target
from dlc.graph.pass_ import PassContext
from dlc.graph.rewrite import rewrite_graph
from dlc.graph.rules import LAST_RULES, PATTERN_RULES, SHAPE_RULES, STEP_RULES
from tests.graph.pass_cases import CONTEXT, read, same

ON_GPU = PassContext(Target(backend="cuda", gpu=Gpu()))
FOR_GPUS = ("integers_into_bytes", "convolved_integers_into_bytes")
RULES = (*PATTERN_RULES, *SHAPE_RULES, *STEP_RULES, *LAST_RULES)
X4 = "x: f32[2, 3, 5, 7]"
CONV = ("w: f32[4, 3, 3, 3] = const()", "a: f32[2, 4, 5, 7] = conv(x, w, pads=(1, 1, 1, 1))")
MATMUL = ("w: f32[5, 7] = const()", "a: f32[3, 7] = matmul(x, w)")
LINEAR = ("w: f32[5, 12] = const()", "p: f32[6, 12] = matmul(x, w)")
BESIDE = (
    "a: f32[2, 5] = concat(x, z, axis=1)", "c: f32[()] = const(3)", "b: f32[2, 5] = mul(c, a)",
    "r: f32[2, 5] = round(b)", "y: u8[2, 5] = cast(r, to=u8)",
)  # fmt: skip
BESIDE_INPUTS = "x: f32[2, 3], z: f32[2, 2]"
CHOSEN = "x: f32[4, 5, 1], i: i64[4]"
MATRICES = ("w: f32[3, 7, 5] = const()", "g: f32[4, 7, 5] = gather(w, i, axis=0)")
NORM = tuple(f"{n}: f32[3] = const(1, 2, 3)" for n in ("s", "b", "m", "v"))


def rewrite(text, rule):
    """The graph before and after, and the refusals of this rule."""
    graph = read(text.replace("f32[", "f64[").replace("F32", "f32"))
    refusals = []
    chosen = [r for r in RULES if r.name == rule]
    assert chosen, f"there is no rule '{rule}'"
    context = ON_GPU if rule in FOR_GPUS else CONTEXT
    after = rewrite_graph(graph, chosen, context, lambda name, _, why: refusals.append((name, why)))
    sizes = {name: 2 + i for i, name in enumerate(graph.sizes)}
    same(graph, after, sizes)
    return graph, after, refusals


def assert_rewrites(rule, text, left):
    """Assert that a rule changes a graph, keeps its results, and which operators it leaves."""
    before, after, _ = rewrite(text, rule)
    assert ops(after) == left, ops(after)
    assert after != before


def assert_refuses(rule, reason, text):
    """Assert that a rule leaves a graph as it is, and says why."""
    before, after, refusals = rewrite(text, rule)
    assert any(name == rule and reason in why for name, why in refusals), refusals
    assert len(after.nodes) == len(before.nodes)


def ops(graph):
    return [n.op.name for n in graph.nodes]


def body(inputs, *lines, outputs="y"):
    text = "\n    ".join((*lines, f"return {outputs}"))
    return f"def main({inputs}):\n    {text}\n"


def elementwise(*lines, shape="3, 5", outputs="y"):
    types = ["f32[()]" if "const(" in line else f"f32[{shape}]" for line in lines]
    typed = [line.replace(":", f": {t}", 1) for line, t in zip(lines, types, strict=True)]
    return body(f"x: f32[{shape}]", *typed, outputs=outputs)
