"""Products of one row with a matrix on a GPU."""

from __future__ import annotations

import pytest

from dlc.graph.lower import lower_group
from dlc.graph.text import parse_graph
from dlc.schedule.loop import Func
from dlc.schedule.rules import gpu_vector, prepare, rule_for
from dlc.schedule.trace import Trace
from tests.codegen.gpu import GPU, check_emulated, schedule
from tests.schedule.data import inputs


def vector(
    columns: str, depth: str, dtype: str = "f32", last: str = "add(m, b)", panel: int = 0
) -> Func:
    """A row times a matrix, which lies in panels if they are wide, and something behind it."""
    weights = f"{dtype}[{depth}, {columns}]"
    product = "matmul(x, w)"
    if panel:
        weights = f"{dtype}[{-(-int(columns) // panel)}, {depth}, {panel}]"
        product = f"matmul_packed(x, w, n={columns})"
    sizes = "".join(f"{n}: size, " for n in (columns, depth) if n.isalpha())
    return lower_group(
        parse_graph(f"""
def main({sizes}x: {dtype}[1, {depth}], w: {weights}, b: {dtype}[{columns}]):
    m: {dtype}[1, {columns}] = {product}
    y: {dtype}[1, {columns}] = {last}
    return y
"""),
        "f",
    )


def is_taken(func: Func) -> bool:
    trace = Trace(func)
    prepare(trace, GPU)
    return rule_for(trace.func, GPU) is gpu_vector


@pytest.mark.parametrize(
    ("func", "columns"),
    [
        (vector("1000", "256"), 8),
        (vector("1000", "100", panel=32), 8),
        (vector("5000", "64"), 32),
        (vector("37", "70"), 8),  # neither blocks nor groups of threads are full
        (vector("333", "300", "f16", "gelu(m)"), 16),
        (vector("333", "300", "bf16", panel=64), 16),
        (vector("40", "70", "f64"), 8),
        (vector("8", "64"), 8),
        (vector("9", "64", panel=16), 8),
    ],
)
def test_blocks_have_columns_side_by_side(func: Func, columns: int) -> None:
    assert is_taken(func)
    made = schedule(func, "k")
    (kernel,) = made.kernels
    assert kernel.threads == 512
    assert f"DLC_THREAD / {columns};" in kernel.text
    check_emulated(made, inputs(func, {}), {}, rtol=1e-5)


@pytest.mark.parametrize(
    "func",
    [
        vector("1000", "30"),  # a thread adds up so few alone
        vector("1000", "256", panel=4),  # less than a sector
        vector("2", "768", "f16"),
        vector("15", "64", "f16", panel=64),
        vector("n", "256"),
        vector("1000", "n"),
        lower_group(
            parse_graph("""
def main(x: f32[1, 128], w: f32[64, 128]):
    t: f32[128, 64] = transpose(w, perm=(1, 0))
    y: f32[1, 64] = matmul(x, t)
    return y
"""),
            "f",
        ),  # columns are apart
        lower_group(
            parse_graph("""
def main(x: f32[2, 1, 128], w: f32[2, 128, 64]):
    y: f32[2, 1, 64] = matmul(x, w)
    return y
"""),
            "f",
        ),
    ],
)
def test_other_products_of_few_rows_are_left_to_other_rules(func: Func) -> None:
    assert not is_taken(func)
    made = schedule(func, "k")
    check_emulated(made, inputs(func, {"n": 96}), {"n": 96}, rtol=1e-5, orders=("shuffled",))
