"""The schedule rules for GPUs: which nests they take, and that the kernels compute the same."""

from __future__ import annotations

from itertools import product
from types import ModuleType

import numpy as np
import pytest

from dlc.codegen.cuda.emulate import Emulator
from dlc.core.types import DType
from dlc.graph.lower import lower_group
from dlc.graph.ops.conv_blocked import ConvBlocked
from dlc.graph.ops.softmax import Softmax
from dlc.graph.text import parse_graph
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func
from dlc.schedule.lower import lower_tensors
from dlc.schedule.pipeline import optimize
from dlc.schedule.primitive import replay
from dlc.schedule.round_products import round_products
from dlc.schedule.rules import (
    finish_rest,
    gpu_attend,
    gpu_contract,
    gpu_matrix,
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
from tests.schedule.test_rules import CASES, sparse_conv, tensor

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
    rounded = round_products(sparse_conv(9, 1)(), GPU, precision)
    scheduled = schedule(rounded, "k")
    (kernel,) = scheduled.kernels
    assert kernel.text.count("DLC_ROOMY_KERNEL(") == 1  # what is rare costs no spilled registers
    assert "multiply_tf32" in kernel.text or "multiply_tiles" in kernel.text
    check_emulated(scheduled, with_infinities(inputs(rounded, {})), {})


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


def product_of(dtype: str, rows: int, columns: int, depth: int) -> Func:
    """A matrix product with a bias."""
    shape = f"{dtype}[{rows}, {columns}]"
    return lower_group(
        parse_graph(f"""
def main(x: {dtype}[{rows}, {depth}], w: {dtype}[{depth}, {columns}], b: {dtype}[{columns}]):
    m: {shape} = matmul(x, w)
    y: {shape} = add(m, b)
    return y
"""),
        "f",
    )


def product_of_bytes(left: str, right: str, rows: int, columns: int, depth: int) -> Func:
    """A matrix product of whole numbers with a bias."""
    shape = f"i32[{rows}, {columns}]"
    return lower_group(
        parse_graph(f"""
def main(x: {left}[{rows}, {depth}], w: {right}[{depth}, {columns}], b: i32[{columns}]):
    p: i32[{rows}, {depth}] = cast(x, to=i32)
    q: i32[{depth}, {columns}] = cast(w, to=i32)
    m: {shape} = matmul(p, q)
    y: {shape} = add(m, b)
    return y
"""),
        "f",
    )


def all_bytes(func: Func) -> dict[str, np.ndarray]:
    """Inputs of a function over the whole ranges of their types."""
    random = np.random.default_rng(5)
    found = {}
    for buffer in func.inputs:
        limits = np.iinfo("uint8" if buffer.type.dtype is DType.U8 else "int8")
        kind = {DType.U8: np.uint8, DType.I8: np.int8}.get(buffer.type.dtype, np.int32)
        values = random.integers(limits.min, limits.max + 1, buffer.type.static_shape)
        found[buffer.name] = values.astype(kind)
    return found


def on_engine(func: Func, symbol: str, knobs: dict[str, int]) -> Scheduled:
    """A product on the matrix engine; float32 as TF32."""
    if func.inputs[0].type.dtype is DType.F32:
        func = round_products(func, GPU, "tf32")
    trace = Trace(func)
    prepare(trace, GPU)
    found = gpu_matrix.match(trace.func, GPU)
    assert found is not None
    gpu_matrix.schedule(trace, found, GPU, knobs)
    return schedule(func, symbol, trace.steps)


def test_every_tile_of_warps_computes_the_same() -> None:
    made = {}
    for tile in range(1, 1 + len(gpu_matrix.TILES)):
        for kind in ("f16" if tile % 2 else "bf16", *["f32"] * (tile in (1, 4, 8))):
            depth = 16 if kind == "f32" else 32 * (1 + tile % 3)
            func = product_of(kind, 131, 133, depth)
            made[tile, kind] = on_engine(func, f"k{tile}_{kind}", {"tile": tile})
    emulator = Emulator([k for s in made.values() for k in s.kernels])
    for (_, kind), one in made.items():
        name = "multiply_tf32<" if kind == "f32" else "multiply_tiles<"
        assert [k.text.count(name) for k in one.kernels] == [1]
        arrays = inputs(one.func, {})
        check_emulated(one, arrays, {}, emulator=emulator, orders=("shuffled",))
    loads, conflicts = emulator.conflicts()
    assert loads > 1000
    assert conflicts == 0


@pytest.mark.parametrize(
    ("left", "right", "rows", "columns", "depth", "knobs"),
    [
        ("u8", "i8", 131, 133, 96, {"tile": 1}),
        ("i8", "i8", 37, 71, 128, {"tile": 8, "parts": 2, "chunk": 32}),
        ("i8", "u8", 70, 40, 256, {"stages": 3, "parts": 1, "chunk": 64}),
        ("u8", "u8", 16, 64, 32, {}),
    ],
)
def test_bytes_are_multiplied_by_the_engine_exactly(
    left: str, right: str, rows: int, columns: int, depth: int, knobs: dict[str, int]
) -> None:
    func = product_of_bytes(left, right, rows, columns, depth)
    made = on_engine(func, "k", knobs)
    assert [k.text.count("multiply_bytes<") for k in made.kernels] == [1]
    assert "copy_async<16>" in made.kernels[0].text
    emulator = Emulator(made.kernels)
    check_emulated(made, all_bytes(func), {}, emulator=emulator, orders=("shuffled", "forward"))
    assert emulator.conflicts()[0] > 10
    assert emulator.conflicts()[1] == 0


def test_a_product_of_bytes_means_what_its_loops_mean() -> None:
    func = product_of_bytes("u8", "i8", 35, 41, 64)
    assert 'invoke("warp_product_u8_i8_' in str(optimize(func, GPU))
    got, want = (run_func(f, {}, all_bytes(func)) for f in (optimize(func, GPU), func))
    np.testing.assert_array_equal(got["out"], want["out"])


def test_tf32_is_rounded_by_the_instruction_and_copied_whole() -> None:
    plain = product_of("f32", 32, 64, 32)
    random = np.random.default_rng(2)
    shapes = {b.name: b.type.static_shape for b in plain.inputs}
    arrays = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    arrays["in0"][3, :] = np.inf
    arrays["in0"][4, 5] = np.nan
    made = on_engine(plain, "k", {})
    (kernel,) = made.kernels
    assert "copy_async<4>" in kernel.text
    assert "math_tf32" not in kernel.text
    check_emulated(made, arrays, {}, rtol=1e-5)
    with np.errstate(invalid="ignore"):
        exact = arrays["in0"].astype(np.float64) @ arrays["in1"] + arrays["in2"]
        got = run_func(made.func, {}, arrays)["out"]
    assert np.array_equal(np.isnan(got), np.isnan(exact))
    error = np.nanmax(np.abs(got - exact)[np.isfinite(exact)])
    assert 1e-4 < error < 2e-2


@pytest.mark.parametrize("rule", [gpu_contract, gpu_matrix])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_chunks_come_beside_the_work_on_those_before(rule: ModuleType, stages: int) -> None:
    func = product_of("f32" if rule is gpu_contract else "f16", 37, 72, 80)
    trace = Trace(func)
    prepare(trace, GPU)
    found = rule.match(trace.func, GPU)
    rule.schedule(trace, found, GPU, {"tile": 8, "chunk": 16, "parts": 1, "stages": stages})
    made = schedule(func, "k", trace.steps)
    (kernel,) = made.kernels
    assert f"wait_copies<{max(0, stages - 2)}>" in kernel.text
    assert kernel.text.count("copy_async<8>" if rule is gpu_matrix else "copy_async<4>") == (
        2 if stages == 1 else 4
    )
    emulator = Emulator(made.kernels)
    check_emulated(made, inputs(func, {}), {}, emulator=emulator)
    assert emulator.conflicts()[1] == 0


def test_a_product_of_warps_means_what_its_loops_mean() -> None:
    func = product_of("f16", 35, 41, 48)
    made = on_engine(func, "k", {"tile": 7})
    assert 'invoke("warp_product_f16_1x2"' in str(optimize(func, GPU))
    check_emulated(made, inputs(func, {}), {})
    got, want = (run_func(f, {}, inputs(func, {})) for f in (optimize(func, GPU), func))
    np.testing.assert_array_equal(got["out"], want["out"])


@pytest.mark.parametrize("rule", [gpu_contract, gpu_matrix])
def test_a_long_sum_runs_on_several_blocks(rule: ModuleType) -> None:
    func = product_of("f32" if rule is gpu_contract else "f16", 37, 71, 96)
    trace = Trace(func)
    prepare(trace, GPU)
    found = rule.match(trace.func, GPU)
    rule.schedule(trace, found, GPU, {"tile": 8, "chunk": 16, "parts": 3})
    made = schedule(func, "k", trace.steps)
    assert [str(b.type) for b in made.arrivals] == ["u32[9]"]
    check_emulated(made, inputs(func, {}), {})


def test_halos_are_filled_by_a_launch_with_a_tail() -> None:
    func = CASES["conv_7x7"]()
    trace = Trace(func)
    prepare(trace, GPU)
    found = gpu_contract.match(trace.func, GPU)
    assert found is not None
    gpu_contract.schedule(trace, found, GPU, {"parts": 2, "chunk": 8})
    finish_rest(trace, GPU)
    made = schedule(func, "k", trace.steps)
    assert len(made.kernels) == len(made.arrivals) == 1
    check_emulated(made, inputs(func, {}), {})


def test_few_blocks_with_long_sums_are_split_by_themselves() -> None:
    wide = product_of("f16", 64, 64, 1024)
    made = schedule(wide, "k")
    assert len(made.kernels) == len(made.arrivals) == 1
    check_emulated(made, inputs(wide, {}), {}, orders=("shuffled",))
    assert not schedule(product_of("f16", 64, 64, 128), "k").arrivals


def test_the_parts_of_a_sum_and_the_rows_of_a_norm_meet_in_one_launch() -> None:
    func = norm(16, 70, "layer_norm(s, g, g)", depth=512)
    made = schedule(func, "k")
    assert len(made.kernels) == 1
    assert made.kernels[0].text.count("last_block(") == 2
    check_emulated(made, inputs(func, {}), {}, rtol=1e-4, orders=("shuffled", "backward"))


@pytest.mark.parametrize("precision", ["high", "tf32", "medium"])
@pytest.mark.parametrize("last", ["", "layer_norm(s, g, g)"])
def test_rounded_products_run_on_the_engine(precision: str, last: str) -> None:
    plain = norm(33, 70, last, depth=32) if last else product_of("f32", 33, 70, 48)
    func = round_products(plain, GPU, precision)
    made = schedule(func, "k")
    name = "multiply_tf32<" if precision == "tf32" else "multiply_tiles<"
    assert [k.text.count(name) for k in made.kernels] == [1]
    check_emulated(made, inputs(func, {}), {}, rtol=1e-5 if last else 0.0)


@pytest.mark.parametrize("name", ["conv_5x15", "conv_7x7"])
@pytest.mark.parametrize("precision", ["tf32", "medium"])
def test_rounded_convolutions_run_on_the_engine(name: str, precision: str) -> None:
    func = round_products(CASES[name](), GPU, precision)
    made = schedule(func, "k")
    engine = "multiply_tf32<" if precision == "tf32" else "multiply_tiles<"
    assert [k.text.count(engine) for k in made.kernels] == [1]
    check_emulated(made, inputs(func, {}), {}, orders=("shuffled",))


def test_three_products_of_bf16_are_nearly_those_of_float32() -> None:
    plain = product_of("f32", 32, 32, 64)
    random = np.random.default_rng(1)
    shapes = {b.name: b.type.static_shape for b in plain.inputs}
    arrays = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    exact = arrays["in0"].astype(np.float64) @ arrays["in1"] + arrays["in2"]
    errors = []
    for precision in ("medium", "high"):
        got = run_func(round_products(plain, GPU, precision), {}, arrays)["out"]
        errors.append(float(np.abs(got - exact).max()))
    assert 1e-3 < errors[0] < 2e-1
    assert errors[1] < 2e-4


@pytest.mark.parametrize(("rows", "columns", "depth"), [(15, 70, 32), (70, 31, 32), (70, 70, 10)])
def test_products_that_fill_no_instruction_stay_as_they_are(
    rows: int, columns: int, depth: int
) -> None:
    func = product_of("f32", rows, columns, depth)
    assert round_products(func, GPU, "medium") is func


def norm(rows: int, columns: int, last: str, depth: int = 19, results: str = "y") -> Func:
    """A product, a residual, and a norm of the rows."""
    shape = f"f32[1, {rows}, {columns}]"
    graph = parse_graph(f"""
def main(x: f32[1, {rows}, {depth}], w: f32[{depth}, {columns}], r: {shape}, g: f32[{columns}]):
    m: {shape} = matmul(x, w)
    s: {shape} = add(m, r)
    y: {shape} = {last}
    return {results}
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


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "precision"),
    [(37, 70, 19, "highest"), (16, 64, 512, "highest"), (33, 70, 32, "tf32")],
)
def test_the_rows_of_a_norm_may_be_a_result_too(
    rows: int, columns: int, depth: int, precision: str
) -> None:
    func = norm(rows, columns, "layer_norm(s, g, g)", depth, "s, y")
    made = schedule(round_products(func, GPU, precision) if precision == "tf32" else func, "k")
    assert [("warp_add(" in k.text, k.text.count("_tf32<")) for k in made.kernels] == [
        (True, int(precision == "tf32"))
    ]
    check_emulated(made, inputs(made.func, {}), {}, rtol=1e-4)


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
