"""Sums of products on a GPU, by threads and by matrix engines, and what follows them there."""

from __future__ import annotations

from itertools import product
from types import ModuleType

import numpy as np
import pytest

from dlc.codegen.cuda.emulate import Emulator
from dlc.core.types import DType
from dlc.graph.lower import lower_group
from dlc.graph.text import parse_graph
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func
from dlc.schedule.pipeline import optimize
from dlc.schedule.round_products import round_products
from dlc.schedule.rules import (
    finish_rest,
    gpu_contract,
    gpu_matrix,
    prepare,
)
from dlc.schedule.trace import Trace
from tests.codegen.gpu import GPU, Scheduled, check_emulated, schedule
from tests.schedule.data import inputs
from tests.schedule.rules.cases import CASES


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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_few_blocks_with_long_sums_are_split_by_themselves() -> None:
    wide = product_of("f16", 64, 64, 4096)
    made = schedule(wide, "k")
    assert len(made.kernels) == len(made.arrivals) == 1
    check_emulated(made, inputs(wide, {}), {}, orders=("shuffled",))
    assert not schedule(product_of("f16", 64, 64, 1024), "k").arrivals


def test_the_parts_of_a_sum_and_the_rows_of_a_norm_meet_in_one_launch() -> None:
    func = norm(16, 70, "layer_norm(s, g, g)", depth=2048)
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


def test_rows_that_shared_memory_does_not_hold_are_read_where_they_are() -> None:
    near, far = (schedule(norm(16, n, "layer_norm(s, g, g)"), "k").kernels[0] for n in (64, 1100))
    assert "add_1_near" in near.text
    assert "add_1_near" not in far.text
    assert "arrivals" in far.text


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
