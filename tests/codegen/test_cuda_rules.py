"""The schedule rules for GPUs: which nests they take, and that the kernels compute the same."""

from __future__ import annotations

from itertools import product
from types import ModuleType

import numpy as np
import pytest

from dlc.codegen.cuda.emulate import Emulator
from dlc.graph.lower import lower_group
from dlc.graph.ops.norm import Softmax
from dlc.graph.text import parse_graph
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.primitive import replay
from dlc.schedule.rules import (
    gpu_attend,
    gpu_contract,
    gpu_own,
    gpu_row,
    prepare,
    rule_for,
    schedule_func,
)
from dlc.schedule.trace import Trace
from dlc.te.tensor import pad
from tests.codegen.gpu import GPU, Scheduled, check_emulated, schedule
from tests.schedule.data import inputs
from tests.schedule.test_rules import CASES, tensor

CONTRACTIONS = [
    "dense_bias_relu",
    "dense_many_rows",
    "dense_symbolic_rows",
    "long_conv",
    "scores",
    "scores_transposed",
    "conv_7x7",
    "conv_5x15",
    "conv_strided",
    "first_conv",
    "planar_conv",
]
OWN = [
    "one_row",
    "depthwise_7",
    "depthwise_19",
    "depthwise_strided",
    "max_pool",
    "average_pool",
    "global_mean",
    "row_mean",
]
ROWS = ["softmax_40", "softmax_13", "layer_norm"]
NARROW = ["softmax_13", "layer_norm"]  # rows that one thread computes alone
ATTENTIONS = ["attention", "attention_unmasked", "attention_of_wide_heads"]
SIZES = ({"n": 5, "m": 7}, {"n": 1, "m": 2}, {"n": 40, "m": 3}, {"n": 0, "m": 1})


@pytest.fixture(scope="module")
def emulator() -> tuple[Emulator, dict[str, Scheduled]]:
    found = {name: schedule(make(), f"case{n}") for n, (name, make) in enumerate(CASES.items())}
    return Emulator([k for s in found.values() for k in s.kernels]), found


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_compute_the_same(
    name: str, emulator: tuple[Emulator, dict[str, Scheduled]]
) -> None:
    scheduled = emulator[1][name]
    wanted = scheduled.func.sizes
    for sizes in SIZES if wanted else ({},):
        mine = {s: sizes[s] for s in wanted}
        arrays = inputs(scheduled.func, mine)
        # Softmax and norms divide by sums, whose order differs; all else is exact.
        divided = ("softmax", "layer", "average", "global", "row", "attention")
        rtol = 1e-5 if name.startswith(divided) else 0.0
        check_emulated(scheduled, arrays, mine, emulator=emulator[0], rtol=rtol)


@pytest.mark.parametrize(
    ("name", "rule"),
    [(n, gpu_contract) for n in CONTRACTIONS]
    + [(n, gpu_own) for n in OWN]
    + [(n, gpu_row) for n in ROWS]
    + [(n, gpu_attend) for n in ATTENTIONS],
)
def test_a_rule_takes_its_nests(name: str, rule: ModuleType) -> None:
    trace = Trace(CASES[name]())
    prepare(trace, GPU)
    assert rule_for(trace.func, GPU) is rule
    made = schedule(CASES[name](), "k").kernels
    assert len(made) == 1 or name == "planar_conv"  # whose padded image is a launch, or two
    assert any(k.shared_bytes for k in made) == (rule is not gpu_own and name not in NARROW)


def norm(rows: int, columns: int, last: str) -> Func:
    """A product, a residual, and a norm of the rows."""
    shape = f"f32[1, {rows}, {columns}]"
    graph = parse_graph(f"""
def main(x: f32[1, {rows}, 19], w: f32[19, {columns}], r: {shape}, g: f32[{columns}]):
    m: {shape} = matmul(x, w)
    s: {shape} = add(m, r)
    y: {shape} = {last}
    return y
""")
    return lower_group(graph, "f")


@pytest.mark.parametrize(
    ("rows", "columns", "last"),
    [
        (37, 70, "layer_norm(s, g, g)"),
        (16, 64, "rms_norm(s, g)"),
        (5, 130, "softmax(s, axis=2)"),
        (33, 3, "layer_norm(s, g, g)"),
    ],
)
def test_the_last_block_normalises_the_rows_of_a_product(
    rows: int, columns: int, last: str
) -> None:
    made = schedule(norm(rows, columns, last), "k")
    assert len(made.kernels) == 1
    assert len(made.arrivals) == 1
    check_emulated(made, inputs(made.func, {}), {}, rtol=1e-5)


def test_every_tile_computes_the_same() -> None:
    func = CASES["dense_many_rows"]()
    made: dict[tuple[int, int], Scheduled] = {}
    for tile, chunk in product(range(1, 9), (8, 32)):
        trace = Trace(func)
        prepare(trace, GPU)
        found = gpu_contract.match(trace.func, GPU)
        assert found is not None
        gpu_contract.schedule(trace, found, GPU, {"tile": tile, "chunk": chunk})
        made[tile, chunk] = schedule(func, f"k{tile}_{chunk}", trace.steps)
    emulator = Emulator([k for s in made.values() for k in s.kernels])
    for one in made.values():
        check_emulated(one, inputs(func, {}), {}, emulator=emulator, orders=("shuffled",))
    assert len({k.threads for s in made.values() for k in s.kernels}) > 2


def test_a_schedule_for_a_gpu_replays() -> None:
    func = CASES["conv_5x15"]()
    trace = schedule_func(func, GPU, {})
    assert replay(func, trace.steps) == trace.func


@pytest.mark.parametrize("width", [32, 33, 96, 257, 300])
@pytest.mark.parametrize("threads", [32, 256])
def test_rows_of_any_width(width: int, threads: int) -> None:
    x = tensor("a", 3, width)
    func = lower_tensors("f", (), (x,), (Softmax(axis=-1).compute(x),))
    trace = Trace(func)
    prepare(trace, GPU)
    found = gpu_row.match(trace.func, GPU)
    assert found is not None
    gpu_row.schedule(trace, found, GPU, {"threads": threads})
    made = schedule(func, "k", trace.steps)
    assert [k.threads for k in made.kernels] == [threads]
    got = run_func(optimize(func, GPU, trace.steps), {}, inputs(func, {}))
    want = run_func(func, {}, inputs(func, {}))
    np.testing.assert_allclose(got["out"], want["out"], rtol=1e-5)


def test_what_surrounds_a_copy_is_filled_by_its_launch() -> None:
    x = tensor("a", 2, 5, 7)
    func = lower_tensors("f", (), (x,), (pad("p", x, (0, 1, 2), (0, 1, 0)),))
    made = schedule(func, "k")
    assert len(made.kernels) == 1
    check_emulated(made, inputs(func, {}), {})
