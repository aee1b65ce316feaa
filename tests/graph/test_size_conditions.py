"""Conditions that sizes decide are the program's own on a GPU, unless something else reads them."""

from __future__ import annotations

from functools import partial

import pytest

from dlc.frontend.onnx import import_model, load_model
from dlc.graph.lower import lower_graph
from dlc.graph.pass_ import PassContext, run_passes
from dlc.graph.pipeline import PIPELINE
from dlc.schedule.program import HostIf, Program, statements
from dlc.te.transform import loads
from tests.codegen.gpu import GPU
from tests.frontend.text_model import model

HEAD = """(float[n,m] x, bool b) => (float[n,m] y{outputs})
    <int64 zero = {{0}}, int64 three = {{3}}, bool go = {{1}}> {{
    s = Shape(x) rows = Gather(s, zero) c = {condition} {rest} }}"""
CHOICE = """{y} = If({c}) <then_branch = yes () => (float[n,m] {y}_u) {{ {y}_u = Neg({x}) }},
                           else_branch = no () => (float[n,m] {y}_v) {{ {y}_v = Add({x}, {x}) }}>"""
Y = CHOICE.format(y="y", c="c", x="x")
TWO = f"{CHOICE.format(y='h', c='c', x='x')} {CHOICE.format(y='y', c='c', x='h')}"
STEP = """y = Loop(three, go, {first}) <body =
    step (int64 i, bool on, float[n,m] p) => (bool off, float[n,m] g) {{
    off = Identity(on) {outside} {choice} }}>"""
STEPS = partial(STEP.format, outside="", choice=CHOICE.format(y="g", c="c", x="p"))
OWN = "at = Shape(p) r = Gather(at, zero) k = Greater(r, three)"
FACTOR = "q = If(c) <then_branch = yes () => (float[n,m] u) { u = Neg(x) }, "
FACTOR += "else_branch = no () => (float[n,m] v) { f = Cast<to=1>(c) v = Add(x, f) }> y = Abs(q)"


def program_of(condition: str, rest: str, outputs: str = "") -> Program:
    text = HEAD.format(condition=condition, rest=rest, outputs=outputs)
    graph = import_model(load_model(model(text))).graph
    return lower_graph(run_passes(graph, PIPELINE, PassContext(target=GPU)))[0]


def conditions(program: Program) -> list[str]:
    """Of all branches, with "data" for those that read an element."""
    found = [s.cond for s in statements(program.body) if isinstance(s, HostIf)]
    return ["data" if list(loads(cond)) else str(cond) for cond in found]


@pytest.mark.parametrize(
    ("condition", "rest", "wanted"),
    [
        ("Greater(rows, three)", Y, ["3 < n"]),
        ("Cast<to=9>(rows)", Y, ["n != 0"]),
        ("Greater(rows, three)", TWO, ["3 < n", "3 < n"]),
        ("Greater(rows, three)", FACTOR, ["3 < n"]),
        (
            "Greater(rows, three)",
            STEP.format(first="x", outside=OWN, choice=CHOICE.format(y="g", c="k", x="p")),
            ["3 < n"],
        ),
    ],
    ids=["comparison", "size", "two branches", "a number in a branch, too", "in a body"],
)
def test_the_program_decides(condition: str, rest: str, wanted: list[str]) -> None:
    program = program_of(condition, rest)
    assert conditions(program) == wanted
    assert not any(k.outputs[0].type.dtype.name == "BOOL" for k in program.kernels)


@pytest.mark.parametrize(
    ("condition", "rest", "outputs"),
    [
        ("Greater(rows, three)", Y, ", bool c"),
        ("Greater(rows, three)", STEPS(first="x"), ""),
        ("Greater(rows, three)", f"{CHOICE.format(y='h', c='c', x='x')} {STEPS(first='h')}", ""),
        ("And(b, b)", Y, ""),
    ],
    ids=["an output", "read by a body", "also by a body", "of data"],
)
def test_what_something_else_reads_is_computed(condition: str, rest: str, outputs: str) -> None:
    assert set(conditions(program_of(condition, rest, outputs))) == {"data"}
