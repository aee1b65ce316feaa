"""The schedule rules for GPUs: which nests they take, and that the kernels compute the same."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from dlc.codegen.cuda.emulate import Emulator
from dlc.graph.lower import lower_group
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.matmul import MatMulPacked
from dlc.graph.ops.softmax import Softmax
from dlc.graph.text import parse_graph
from dlc.schedule.interpret import run_func
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.primitive import replay
from dlc.schedule.round_products import round_products
from dlc.schedule.rules import (
    gpu_attend,
    gpu_contract,
    gpu_own,
    gpu_repair,
    gpu_row,
    gpu_window,
    prepare,
    rule_for,
    schedule_func,
)
from dlc.schedule.trace import Trace
from dlc.te.expr import index
from dlc.te.tensor import pad
from tests.codegen.gpu import GPU, Scheduled, check_emulated, schedule
from tests.schedule.data import inputs, parse
from tests.schedule.rules.cases import CASES
from tests.schedule.rules.nests import tensor
from tests.schedule.rules.windows import sparse_conv

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
    "max_pool",
    "average_pool",
    "global_mean",
    "row_mean",
]
WINDOWS = ["depthwise_7", "depthwise_19", "depthwise_strided"]
ROWS = ["softmax_40", "softmax_13", "layer_norm"]
NARROW = ["softmax_13", "layer_norm"]  # rows that one thread computes alone
REPAIRED = ["conv_sparse", "conv_sparse_groups"]
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
        divided = ("softmax", "average", "global", "row", "attention")
        rtol = 1e-5 if name.startswith(divided) or "_norm" in name else 0.0
        check_emulated(scheduled, arrays, mine, emulator=emulator[0], rtol=rtol)


@pytest.mark.parametrize(
    ("name", "rule"),
    [(n, gpu_contract) for n in CONTRACTIONS]
    + [(n, gpu_own) for n in OWN]
    + [(n, gpu_window) for n in WINDOWS]
    + [(n, gpu_row) for n in ROWS]
    + [(n, gpu_repair) for n in REPAIRED]
    + [(n, gpu_attend) for n in ATTENTIONS],
)
def test_a_rule_takes_its_nests(name: str, rule: ModuleType) -> None:
    trace = Trace(CASES[name]())
    prepare(trace, GPU)
    assert rule_for(trace.func, GPU) is rule
    made = schedule(CASES[name](), "k").kernels
    assert len(made) == 1 or name == "planar_conv"  # whose padded image is a launch, or two
    assert any(k.shared_bytes for k in made) == (
        rule not in (gpu_own, gpu_window) and name not in NARROW
    )


@pytest.mark.parametrize("name", ["conv_sparse", "conv_sparse_groups"])
def test_what_is_not_finite_is_computed_once_more_without_absent_weights(
    name: str, emulator: tuple[Emulator, dict[str, Scheduled]]
) -> None:
    scheduled = emulator[1][name]
    arrays = with_infinities(inputs(scheduled.func, {}))
    check_emulated(scheduled, arrays, {}, emulator=emulator[0])
    want = run_func(scheduled.func, {}, arrays)["out"]
    kinds = np.isinf(want).sum(), np.isnan(want).sum()
    assert all(0 < kind < want.size / 2 for kind in kinds)


@pytest.mark.parametrize("precision", ["tf32", "medium"])
def test_rounded_products_are_repaired_too(precision: str) -> None:
    rounded = round_products(sparse_conv(9, 1), GPU, precision)
    scheduled = schedule(rounded, "k")
    (kernel,) = scheduled.kernels
    assert kernel.text.count("DLC_ROOMY_KERNEL(") == 1  # what is rare costs no spilled registers
    assert "multiply_tf32" in kernel.text or "multiply_tiles" in kernel.text
    check_emulated(scheduled, with_infinities(inputs(rounded, {})), {})


@pytest.mark.parametrize("name", ["conv_5x15", "conv_7x7"])
@pytest.mark.parametrize("precision", ["tf32", "medium"])
def test_rounded_convolutions_run_on_the_engine(name: str, precision: str) -> None:
    func = round_products(CASES[name](), GPU, precision)
    made = schedule(func, "k")
    engine = "multiply_tf32<" if precision == "tf32" else "multiply_tiles<"
    assert [k.text.count(engine) for k in made.kernels] == [1]
    check_emulated(made, inputs(func, {}), {}, orders=("shuffled",))


@pytest.mark.parametrize(("blocks", "wide"), [(2, 16), (3, 3)])
def test_groups_of_several_blocks_are_products_too(blocks: int, wide: int) -> None:
    x, w = tensor("a", 1, 4, 4, 5, 16), tensor("b", 2 * blocks, 2, 2, 2, 16, wide)
    func = lower_tensors("f", (), (x, w), (ConvBlocked(groups=2).compute(x, w),))
    trace = Trace(func)
    prepare(trace, GPU)
    assert rule_for(trace.func, GPU) is gpu_contract
    check_emulated(schedule(func, "k"), inputs(func, {}), {}, orders=("shuffled",))


def with_infinities(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Weights half of which are absent, and pixels of two blocks that are not finite."""
    arrays["b"][np.random.default_rng(1).random(arrays["b"].shape) < 0.5] = -0.0
    arrays["a"][0, 0, 1, 2, 3], arrays["a"][0, 1, 0, 4, 9] = np.inf, np.nan
    return arrays


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


@pytest.mark.parametrize("norm", ["instance_norm(x, s, s)", "group_norm(x, s, s, groups=3)"])
def test_rows_of_several_dimensions_have_a_block_each(norm: str) -> None:
    func = lower_group(
        parse_graph(f"""
def main(x: f32[2, 6, 7, 9], s: f32[6]):
    y: f32[2, 6, 7, 9] = {norm}
    return y
"""),
        "f",
    )
    scheduled = schedule(func, "k")
    (kernel,) = scheduled.kernels
    assert (kernel.grid, kernel.threads) == ((index(12),), 64 if "instance" in norm else 128)
    check_emulated(scheduled, inputs(func, {}), {}, rtol=1e-5)


def test_a_row_by_a_square_matrix_is_more_than_one_block() -> None:
    """As many sums as summands are no row: a block that added all up would need a thread each."""
    x, w = tensor("a", 1, 160), tensor("b", 5, 160, 32)
    func = lower_tensors("f", (), (x, w), (MatMulPacked(n=index(160)).compute(x, w),))
    scheduled = schedule(func, "k")
    assert all(kernel.grid != (index(1),) for kernel in scheduled.kernels)
    check_emulated(scheduled, inputs(func, {}), {}, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 31, 700])
def test_rows_of_open_width_are_one_launch(width: int) -> None:
    made = schedule(CASES["softmax_symbolic"](), "k")
    (kernel,) = made.kernels
    assert "warp_max(a_max_last," in kernel.text
    sizes = {"n": 1, "m": width}
    check_emulated(made, inputs(made.func, sizes), sizes, rtol=1e-5)


def test_a_row_that_shared_memory_cannot_hold_is_read_again() -> None:
    x = tensor("a", 1, 70_000)
    func = lower_tensors("f", (), (x,), (Softmax(axis=-1).compute(x),))
    (kernel,) = schedule(func, "k").kernels
    assert kernel.shared_bytes < 1000


@pytest.mark.parametrize(("dtype", "name"), [("f64", "max"), ("i32", "add"), ("i64", "min")])
def test_warps_reduce_all_wide_types(dtype: str, name: str) -> None:
    start, step = {
        "max": ("-f64(inf)", "max(s[i], A[i, k])"),
        "min": ("i64(9223372036854775807)", "min(s[i], A[i, k])"),
        "add": ("i32(0)", "s[i] + A[i, k]"),
    }[name]
    func = parse(f"""
    def f(A: {dtype}[2, 601], *, B: {dtype}[2, 601]):
        s = alloc({dtype}[2], "local")
        for i in range(2):
            s[i] = {start}
            for k in range(601):
                s[i] = {step}
        for a in range(2):
            for b in range(601):
                B[a, b] = A[a, b] - s[a]
    """)
    made = schedule(func, "k")
    assert any(f"warp_{name}(" in k.text for k in made.kernels)
    check_emulated(made, inputs(func, {}), {})


def test_what_surrounds_a_copy_is_filled_by_its_launch() -> None:
    x = tensor("a", 2, 5, 7)
    func = lower_tensors("f", (), (x,), (pad("p", x, (0, 1, 2), (0, 1, 0)),))
    made = schedule(func, "k")
    assert len(made.kernels) == 1
    check_emulated(made, inputs(func, {}), {})


SHARED_SUMS = """
    def f(n: size, A: f32[n, 4, 5], *, B: f32[n, 3]):
        s = alloc(f32[n, 4], "local")
        t = alloc(f32[n, 4], "local")
        for i in range(n):
            for j in range(4):
                s[i, j] = 0.0
                for k in range(5):
                    s[i, j] += A[i, j, k]
        for u in range(n):
            for v in range(4):
                t[u, v] = s[u, v] * s[u, v]
        for y in range(n):
            for x in range(3):
                B[y, x] = t[y, x] + t[y, x + 1]
"""
OWN_SUMS = (
    SHARED_SUMS.replace("[n, 3]", "[n, 2]")
    .replace("range(3)", "range(2)")
    .replace("t[y, x] + t[y, x + 1]", "t[y, x * 2] + t[y, x * 2 + 1]")
)


@pytest.mark.parametrize(("text", "shared"), [(SHARED_SUMS, True), (OWN_SUMS, False)])
def test_sums_that_rows_share_are_added_up_once(text: str, shared: bool) -> None:
    func = parse(text)
    found = schedule(func, "sums")
    assert (len(found.kernels) > 1) == shared
    sizes = {"n": 3}
    check_emulated(found, inputs(func, sizes), sizes)
