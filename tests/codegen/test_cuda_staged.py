"""Sums that go on through the shared memory of a block, and those that stay in registers."""

from __future__ import annotations

import pytest

from dlc.graph.lower import lower_group
from dlc.graph.text import parse_graph
from dlc.schedule.loop import Func
from dlc.schedule.rules import gpu_contract, gpu_matrix, prepare
from dlc.schedule.trace import Trace
from tests.codegen.gpu import GPU, Scheduled, check_emulated, schedule
from tests.schedule.data import inputs

STAGED = "_staged["


def product_then(last: str, dtype: str = "f32", rows: int = 71, columns: int = 45) -> Func:
    """A matrix product, and a function of its elements."""
    shape = f"{dtype}[{rows}, {columns}]"
    return lower_group(
        parse_graph(f"""
def main(x: {dtype}[{rows}, 32], w: {dtype}[32, {columns}]):
    m: {shape} = matmul(x, w)
    y: {shape} = {last}
    return y
"""),
        "f",
    )


def convolution_then(last: str) -> Func:
    """A convolution on the matrix engine, and a function of its elements."""
    return lower_group(
        parse_graph(f"""
def main(x: f16[1, 1, 9, 11, 32], w: f16[2, 1, 3, 3, 32, 32]):
    m: f16[1, 2, 7, 9, 32] = conv_blocked(x, w)
    y: f16[1, 2, 7, 9, 32] = {last}
    return y
"""),
        "f",
    )


def scheduled(func: Func, **knobs: int) -> Scheduled:
    """By the rule for products, with knobs."""
    trace = Trace(func)
    prepare(trace, GPU)
    rule = gpu_matrix if gpu_matrix.match(trace.func, GPU) else gpu_contract
    found = rule.match(trace.func, GPU)
    assert found is not None
    rule.schedule(trace, found, GPU, knobs)
    return schedule(func, "k", trace.steps)


@pytest.mark.parametrize(
    ("func", "is_staged"),
    [
        (product_then("relu(m)"), False),  # threads have neighbours
        (product_then("gelu(m)"), True),
        (product_then("sigmoid(m)", columns=3), True),
        (product_then("relu(m)", "f16"), True),
        (product_then("tanh(m)", "bf16"), True),
        (convolution_then("relu(m)"), False),  # each row is a line and a pixel
        (convolution_then("sigmoid(m)"), True),
    ],
)
def test_sums_are_handed_on_where_that_is_faster(func: Func, is_staged: bool) -> None:
    made = schedule(func, "k")
    assert [STAGED in k.text for k in made.kernels] == [is_staged]
    check_emulated(made, inputs(func, {}), {}, rtol=1e-5)


@pytest.mark.parametrize("tile", range(1, 9))
def test_threads_take_every_tile_from_shared_memory(tile: int) -> None:
    func = product_then("gelu(m)", rows=133, columns=90)
    made = scheduled(func, tile=tile)
    assert STAGED in made.kernels[0].text
    check_emulated(made, inputs(func, {}), {}, rtol=1e-5, orders=("shuffled",))


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_the_last_block_of_a_split_sum_goes_on_in_its_registers(dtype: str) -> None:
    func = product_then("gelu(m)", dtype)
    made = scheduled(func, parts=2, chunk=16)
    assert made.arrivals
    assert STAGED not in made.kernels[0].text
    check_emulated(made, inputs(func, {}), {}, rtol=1e-3, orders=("shuffled",))


def test_sums_that_shared_memory_does_not_hold_stay_in_registers() -> None:
    made = {d: scheduled(product_then("tanh(m)", d, 256, 256), tile=1) for d in ("f32", "f64")}
    assert {d: STAGED in one.kernels[0].text for d, one in made.items()} == {
        "f32": True, "f64": False,
    }  # fmt: skip
