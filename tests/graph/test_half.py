"""Models of float32 computed in 16-bit floats: what becomes narrow, what stays, what it means."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dlc.core.errors import UserError
from dlc.core.types import DType
from dlc.graph.half import Half, half_of
from dlc.graph.pass_ import PASSES, PassContext
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


def test_nothing_changes_unasked() -> None:
    graph = parse_graph("def main(x: f32[6, 5]):\n    y: f32[6, 5] = relu(x)\n    return y\n")
    assert PASSES["halve_floats"](graph, PassContext()) is graph


def test_what_is_unknown_is_refused() -> None:
    assert half_of("fp16") == Half(DType.F16)
    assert half_of(None) is None
    with pytest.raises(UserError, match="fp8"):
        half_of("fp8")
    with pytest.raises(UserError, match="no half precision"):
        half_of(None, ["conv"])


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
