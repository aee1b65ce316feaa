"""Models of float32 computed in 16-bit floats: what becomes narrow, what stays, what it means."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlc.core.errors import UserError
from dlc.core.types import DType
from dlc.graph.graph import Graph
from dlc.graph.half import Half, check_kept, half_of
from dlc.graph.pass_ import PASSES, PassContext
from dlc.graph.sizes import bodies
from dlc.graph.text import parse_graph
from dlc.graph.verify import verify_graph
from tests.graph.pass_cases import read

MODEL = """
def main(x: f32[6, 5], i: i64[6], c: bool[6, 8]):
    w: f32[5, 8] = const()
    b: f32[8] = const()
    a: f32[6, 8] = matmul(x, w)
    s: f32[6, 8] = add(a, b)
    r: f32[6, 8] = relu(s)
    g: f32[6, 8] = gather(r, i)
    h: f32[6, 8] = where(c, g, r)
    e: f32[6, 8] = exp(h)
    m: f32[6, 8] = mul(e, b)
    y: f32[6, 8] = softmax(m, axis=1)
    return y, r
"""


def halved(text: str, *, dtype: DType = DType.F16, keep: tuple[str, ...] = ()) -> dict[str, str]:
    """Element types by value behind the pass alone."""
    graph = read(text)
    context = PassContext(half=Half(dtype, frozenset(keep)))
    done = PASSES["halve_floats"](graph, context)
    verify_graph(done, when="after halve_floats")
    return {v.name: str(v.type.dtype) for n in done.nodes for v in n.outputs}


def test_products_and_what_follows_them_are_narrow() -> None:
    found = halved(MODEL)
    assert [n for n, t in found.items() if t == "f16"] == [
        "x_half", "a_half", "s_half", "r_half", "g_half", "h_half",
    ]  # fmt: skip
    assert {n for n, t in found.items() if t == "f32"} == {"h", "e", "m", "y", "r"}


@pytest.mark.parametrize(
    ("keep", "narrow"),
    [
        (("matmul",), []),
        (("s",), ["x_half", "a_half"]),
        (("relu",), ["x_half", "a_half", "s_half"]),
    ],
)
def test_what_is_kept_stays_wide(keep: tuple[str, ...], narrow: list[str]) -> None:
    found = halved(MODEL, dtype=DType.BF16, keep=keep)
    assert [n for n, t in found.items() if t == "bf16"] == narrow


# In each: a product, what follows it alone (`r`), and what meets a carry (`n`).
BODIES = {
    "scan": """
def main(h: f32[2, 4], z: f32[3, 2, 4]):
    def step(h: f32[2, 4], e: f32[2, 4]):
        w: f32[4, 4] = const()
        p: f32[2, 4] = matmul(e, w)
        r: f32[2, 4] = tanh(p)
        m: f32[2, 4] = neg(h)
        n: f32[2, 4] = add(r, m)
        return n, r
    y: f32[2, 4]
    rows: f32[3, 2, 4]
    y, rows = scan(h, z, body=step, carries=1)
    return y, rows
""",
    "loop": """
def main(go: bool[()], h: f32[2, 4]):
    def step(i: i64[()], h: f32[2, 4]):
        w: f32[4, 4] = const()
        more: bool[()] = const(1)
        p: f32[2, 4] = matmul(h, w)
        r: f32[2, 4] = tanh(p)
        m: f32[2, 4] = neg(h)
        n: f32[2, 4] = add(r, m)
        return more, n
    count: i64[1]
    y: f32[2, 4]
    count, y = loop(go, h, body=step, carries=1, limit=5)
    return y
""",
    "branch": """
def main(c: bool[()], x: f32[2, 4]):
    def yes(x: f32[2, 4]):
        w: f32[4, 4] = const()
        p: f32[2, 4] = matmul(x, w)
        r: f32[2, 4] = tanh(p)
        m: f32[2, 4] = neg(x)
        n: f32[2, 4] = sub(m, m)
        s: f32[2, 4] = add(n, r)
        return s
    def no(x: f32[2, 4]):
        s: f32[2, 4] = neg(x)
        return s
    y: f32[2, 4] = branch(c, x, x, then=yes, other=no)
    return y
""",
}
# A branch of a step reads what the step carries, and its result is carried on.
NESTED = """
def main(c: bool[()], h: f32[2, 4], z: f32[3, 2, 4]):
    def step(h: f32[2, 4], e: f32[2, 4], c: bool[()]):
        def yes(g: f32[2, 4], e: f32[2, 4]):
            w: f32[4, 4] = const()
            p: f32[2, 4] = matmul(e, w)
            r: f32[2, 4] = tanh(p)
            s: f32[2, 4] = add(r, g)
            return s
        def no(g: f32[2, 4]):
            s: f32[2, 4] = neg(g)
            return s
        b: f32[2, 4] = branch(c, h, e, h, then=yes, other=no)
        w: f32[4, 4] = const()
        p: f32[2, 4] = matmul(e, w)
        n: f32[2, 4] = add(b, p)
        return n
    y: f32[2, 4] = scan(h, z, c, body=step, carries=1)
    return y
"""


def halved_bodies(text: str, keep: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """The values in 16 bits that nodes of each body make."""
    context = PassContext(half=Half(DType.F16, frozenset(keep)))
    done = PASSES["halve_floats"](read(text), context)
    verify_graph(done, when="after halve_floats")

    def narrow(graph: Graph) -> Iterator[tuple[str, set[str]]]:
        values = [v for n in graph.nodes for v in n.outputs]
        yield graph.name, {v.name for v in values if v.type.dtype is DType.F16}
        for node in graph.nodes:
            for body in bodies(node.op):
                yield from narrow(body)

    return dict(narrow(done))


@pytest.mark.parametrize(
    ("kind", "name", "narrow"),
    [
        ("scan", "step", {"e_half", "p_half", "r_half"}),
        ("loop", "step", {"h_half", "p_half", "r_half"}),
        ("branch", "yes", {"x_half", "p_half", "r_half", "s_half", "n_half"}),
    ],
)
def test_bodies_are_halved_but_for_what_is_carried(kind: str, name: str, narrow: set[str]) -> None:
    found = halved_bodies(BODIES[kind])
    assert found[name] == narrow
    assert not found["main"]


def test_what_is_carried_stays_wide_through_a_branch() -> None:
    found = halved_bodies(NESTED)
    assert found["yes"] == {"e_half", "p_half", "r_half"}
    assert found["step"] == {"e_half", "p_half"}
    assert not found["no"]


@pytest.mark.parametrize("kept", ["scan", "matmul", "p"])
def test_what_is_kept_stays_wide_in_bodies(kept: str) -> None:
    assert not halved_bodies(BODIES["scan"], (kept,))["step"]


def test_a_product_that_is_kept_ends_what_is_carried() -> None:
    text = BODIES["loop"].replace("m: f32[2, 4] = neg(h)", "m: f32[2, 4] = matmul(h, w)")
    found = halved_bodies(text, ("m",))["step"]
    assert found == {"h_half", "p_half", "r_half", "m_half", "n_half"}


def test_a_name_is_no_size() -> None:
    text = """
def main(x_half: size, x: f32[x_half, 5]):
    w: f32[5, 8] = const()
    y: f32[x_half, 8] = matmul(x, w)
    return y
"""
    assert halved_bodies(text)["main"] == {"x_half_", "y_half"}


def test_nothing_changes_unasked() -> None:
    graph = parse_graph("def main(x: f32[6, 5]):\n    y: f32[6, 5] = relu(x)\n    return y\n")
    assert PASSES["halve_floats"](graph, PassContext()) is graph


def test_what_is_unknown_is_refused() -> None:
    assert half_of("fp16") == Half(DType.F16)
    assert half_of(None) is None
    with pytest.raises(UserError, match="fp8"):
        half_of("fp8")
    with pytest.raises(UserError, match=r"no half precision.*\n.*--half fp16"):
        half_of(None, ["conv"])


@pytest.mark.parametrize("name", ["softmax", "Relu", "LSTM", "p", "r", "yes"])
def test_what_has_a_name_may_be_kept(name: str) -> None:
    graph = replace(read(BODIES["branch"]), operators={"a": "LSTM"})
    nodes = tuple(replace(n, source="yes") for n in graph.nodes)
    check_kept(Half(DType.F16, frozenset({name})), replace(graph, nodes=nodes), ["Relu"])


def test_what_is_to_be_kept_must_have_a_name() -> None:
    graph = read(MODEL)
    with pytest.raises(UserError, match="nothing is called 'sofmax'") as raised:
        check_kept(Half(DType.F16, frozenset({"sofmax", "conv"})), graph, ["Conv"])
    assert "did you mean 'softmax'" in str(raised.value)
    check_kept(None, graph, ())


def test_a_build_refuses_to_keep_what_is_not_there(tmp_path: Path) -> None:
    from dlc.compiler import build
    from tests.end_to_end.whole import residual_network

    with pytest.raises(UserError, match="nothing is called 'Convv'") as raised:
        build(
            residual_network().model(), tmp_path / "model.so", half="fp16", keep=["Relu", "Convv"]
        )
    assert "did you mean 'Conv'" in str(raised.value)


def test_onnx_names_what_is_kept() -> None:
    graph = replace(read(MODEL), operators={"first": "Gemm"})
    nodes = tuple(replace(n, source="first") if n.op.name == "matmul" else n for n in graph.nodes)
    context = PassContext(half=Half(DType.F16, frozenset({"Gemm"})))
    done = PASSES["halve_floats"](replace(graph, nodes=nodes), context)
    assert not any(v.type.dtype is DType.F16 for n in done.nodes for v in n.outputs)


@pytest.mark.thorough
@pytest.mark.parametrize(("half", "rtol"), [("fp16", 4e-3), ("bf16", 3e-2)])
def test_a_network_in_half_precision(half: str, rtol: float, tmp_path: Path) -> None:
    from dlc.compiler import build
    from dlc.runtime import load
    from tests.end_to_end.test_networks import onnxruntime_session
    from tests.end_to_end.whole import residual_network

    network = residual_network()
    model, path = network.model(), tmp_path / "model.so"
    report = build(model, path, "native", half=half)
    assert "halve_floats" in [p.name for p in report.passes if p.nodes_after > p.nodes_before]
    feeds = network.feeds({})
    (want,) = onnxruntime_session(model).run(None, feeds)
    found = load(path).run(feeds)["y"]
    assert found.dtype == np.float32
    apart = np.abs(found - want).max() / np.abs(want).max()
    assert 1e-6 < apart < rtol
