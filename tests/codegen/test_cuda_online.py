"""Attention of any length on a GPU: what is taken, and that the kernels are right."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from dlc.codegen.cuda.emulate import EmulationError, Emulator
from dlc.graph.attention import join_attention
from dlc.graph.fusion import groups
from dlc.graph.text import parse_graph
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Func
from dlc.schedule.pipeline import optimize
from dlc.schedule.round_products import round_products
from dlc.schedule.rules import gpu_online, prepare, rule_for
from dlc.schedule.trace import Trace
from tests.codegen.defects import WRONG, Defect, missed
from tests.codegen.gpu import GPU, Scheduled, check_emulated, emulate, schedule
from tests.codegen.test_cuda_attention import ENGINE, attention, attention_text, data, rounded


def found(func: Func) -> gpu_online.OnlineAttention | None:
    trace = Trace(func)
    prepare(trace, GPU)
    return gpu_online.match(trace.func, GPU)


def in_blocks(func: Func, symbol: str, rows: int, keys: int) -> Scheduled:
    """An attention with so many rows in a block, so many keys at a time."""
    trace = Trace(func)
    prepare(trace, GPU)
    attend = gpu_online.match(trace.func, GPU)
    assert attend is not None
    gpu_online.schedule(trace, attend, GPU, {"rows": rows, "keys": keys})
    return schedule(func, symbol, trace.steps)


def open_sizes(
    kind: str = "f32", *, masked: bool = False, size: int = 32, guarded: bool = False
) -> Func:
    sizes = {"heads": 1, "rows": "n", "keys": "m", "size": size}
    return attention(kind, **sizes, masked=masked, guarded=guarded)


SIZES = ({"n": 20, "m": 38}, {"n": 1, "m": 1}, {"n": 3, "m": 0}, {"n": 0, "m": 5})
CASES = {
    "f32": lambda: open_sizes(masked=True, size=5),
    "f32, guarded": lambda: open_sizes(masked=True, size=5, guarded=True),
    "f16, guarded": lambda: open_sizes("f16", masked=True, guarded=True),
    "f32, wide": lambda: open_sizes(size=132),
    "tf32": lambda: round_products(open_sizes(), GPU, "tf32"),
    "high": lambda: round_products(open_sizes(), GPU, "high"),
    "medium": lambda: round_products(open_sizes(masked=True), GPU, "medium"),
    "f16": lambda: open_sizes("f16", masked=True),
    "f16, wide": lambda: open_sizes("f16", size=136),
    "bf16, whole blocks": lambda: attention(
        "bf16", heads=2, rows="n", keys=96, size=32, masked=False
    ),
}
SLOW = ("f32, wide", "medium", "f16, wide")


@pytest.fixture(scope="module")
def kernels() -> tuple[Emulator, Mapping[str, Scheduled]]:
    made = {
        name: in_blocks(make(), f"k{n}", 16, 32)
        for n, (name, make) in enumerate(CASES.items())
        if name not in SLOW
    }
    return Emulator([k for s in made.values() for k in s.kernels]), made


@pytest.mark.parametrize("name", [n for n in CASES if n not in SLOW])
def test_blocks_of_keys_give_what_whole_rows_give(
    name: str, kernels: tuple[Emulator, Mapping[str, Scheduled]]
) -> None:
    check(name, kernels[0], kernels[1][name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_so_do_wide_values_and_other_precisions(name: str) -> None:
    one = in_blocks(CASES[name](), "k", 16, 32)
    check(name, Emulator(one.kernels), one)


def check(name: str, emulator: Emulator, one: Scheduled) -> None:
    """Engines multiply where they should, and the kernel is right in all sizes."""
    (kernel,) = one.kernels
    wanted = [0, 0] if "f32" in name and name != "tf32" else [2, 0] if name == "tf32" else [0, 2]
    assert [kernel.text.count(n) for n in ENGINE] == wanted
    for sizes in SIZES:
        # A weight beside a tie is rounded either way, by which keys it is a share of.
        rtol = 1e-5 if wanted == [0, 0] else 1e-2
        mine = {n: sizes[n] for n in one.func.sizes}
        check_emulated(
            one, data(one.func, mine), mine, emulator=emulator, rtol=rtol, orders=("shuffled",)
        )


def test_no_load_of_matrix_engines_has_bank_conflicts(
    kernels: tuple[Emulator, Mapping[str, Scheduled]],
) -> None:
    loads, conflicts = kernels[0].conflicts()
    assert loads > 1000
    assert conflicts == 0


def hostile() -> dict[str, np.ndarray]:
    """Keys left out in whole blocks and everywhere, scores that are infinite, huge, NaN."""
    arrays = data(CASES["f32"](), {"n": 20, "m": 70})
    mask = arrays["in3"][0, 0]
    mask[:] = 0
    mask[0], mask[1, :64], mask[2, 3:] = -np.inf, -np.inf, -np.inf
    mask[3, 69], mask[4, 0], mask[5, 5] = np.nan, np.nan, np.inf
    mask[6, ::2], mask[7] = -3e38, np.linspace(-3e38, 3e38, 70)
    arrays["in2"][0, 7, 0, 1] = np.inf
    return arrays


def test_guarded_rows_without_a_score_weigh_nothing(
    kernels: tuple[Emulator, Mapping[str, Scheduled]],
) -> None:
    one, sizes, arrays = kernels[1]["f32, guarded"], {"n": 20, "m": 70}, hostile()
    with np.errstate(all="ignore"):
        want = run_func(one.func, sizes, arrays)["out"]
    without = [0, 3, 4, 5]  # -inf everywhere, NaN at the end, NaN in front, inf
    finite = np.isfinite(want[0, without])
    assert (want[0, without][finite] == 0).all()
    assert finite.sum() == 4 * 4  # one of five values is infinite
    check_emulated(one, arrays, sizes, emulator=kernels[0], rtol=1e-5)


def test_hostile_scores_give_what_the_loops_mean(
    kernels: tuple[Emulator, Mapping[str, Scheduled]],
) -> None:
    one, sizes, arrays = kernels[1]["f32"], {"n": 20, "m": 70}, hostile()
    with np.errstate(all="ignore"):
        want = run_func(one.func, sizes, arrays)["out"]
    assert np.isnan(want[0, :8]).all(axis=(1, 2)).tolist() == [
        True,
        False,
        False,
        *[True] * 3,
        False,
        False,
    ]
    check_emulated(one, arrays, sizes, emulator=kernels[0], rtol=1e-5)


def test_a_scheduled_attention_means_what_its_loops_mean() -> None:
    func, sizes = CASES["f32"](), {"n": 5, "m": 70}
    arrays = data(func, sizes)
    got, want = (run_func(f, sizes, arrays)["out"] for f in (optimize(func, GPU), func))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "kind", "is_online"),
    [
        ({"rows": 128, "keys": 128}, "f32", False),
        ({"rows": 1024, "keys": 1024}, "f32", False),  # eight whole rows, by multiply-adds
        ({"rows": 2048, "keys": 2048}, "f32", True),
        ({"rows": 512, "keys": 512}, "f16", False),
        ({"rows": 1024, "keys": 1024}, "f16", True),  # engines multiply
        ({"rows": "n", "keys": "m"}, "f32", True),
        ({"rows": "n", "keys": 300}, "f16", True),
        ({"rows": 20, "keys": "m"}, "bf16", True),
        ({"rows": 3, "keys": "m"}, "f32", False),  # no tiles
        ({"rows": 20, "keys": "m", "size": 300}, "f32", False),  # values that do not fit
        ({"rows": "n", "keys": 64}, "f32", False),  # a single block
    ],
)
def test_whole_rows_that_fit_stay_whole(
    sizes: dict[str, int], kind: str, *, is_online: bool
) -> None:
    func = attention(kind, **{"size": 64, "heads": 12, **sizes})
    attend = found(func)
    assert (attend is not None) == is_online
    trace = Trace(func)
    prepare(trace, GPU)
    assert (rule_for(trace.func, GPU) is gpu_online) == is_online
    if attend is not None:
        assert attend.on_engine == (kind != "f32")
        launches = len(schedule(func, "k").kernels) if func.sizes == ("n", "m") else 1
        assert launches == 1


def test_precision_takes_long_rows_to_engines() -> None:
    func = rounded("tf32", rows=1024, keys=1024, size=64, heads=12)
    attend = found(func)
    assert attend is not None
    assert attend.on_engine


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize("guarded", [False, True])
def test_an_attention_of_open_lengths_is_one_group(kind: str, *, guarded: bool) -> None:
    graph = parse_graph(attention_text(kind, 2, "n", "m", 32, masked=True, guarded=guarded))
    assert len(join_attention(graph, groups(graph), GPU)) == 1


ROW = "i0_4_in_i1_4_in_i2_5_in_i3_4_in_t"
DEFECTS = {
    "sums that keep the weights of the keys so far": Defect(
        "f32", "* add_4_sum_scale[i2_12_in_t]", "* 1.0f", "another",
    ),
    "the total of one block": Defect(
        "f32", f"= add_4_sum_scale[{ROW}] + add_4_sum[", "= add_4_sum[", "another",
    ),
    "a largest score that is not carried on": Defect(
        "f32", f"add_4_max[{ROW}]), float(add_4_max_all[{ROW}])", f"add_4_max[{ROW}]), 0.0f",
        "another",
    ),
    "-inf subtracted from -inf": Defect(
        "f32", "== -inf_of<float>() ? 0.0f", "== 1.5f ? 0.0f", "another",
    ),
    "rows without a key are 0": Defect("f32", "= m == 0 ?", "= true ?", "another"),
    "exponentials behind the last key": Defect(
        "f32", "i0_6_i1_6_i2_7_i3_6_t % 32 < m ?", "i0_6_i1_6_i2_7_i3_6_t % 32 < m + 32 ?",
        "another|race: ",
    ),
    "values behind the last key": Defect(
        "f32", "part_columns_copy_t / 5 < m ?", "part_columns_copy_t / 5 < m + 9 ?",
        "out of bounds",
    ),
    "the last keys left out": Defect(
        "f32", "i1_12o_keys < (m + 31) / 32;", "i1_12o_keys < m / 32;", "another",
    ),
    "keys of the first block again": Defect("f32", "in1[i1_12o_keys * 160", "in1[0", "another"),
    "weights that are NaN": Defect(
        "guarded", "? (math_isnan(math_flush", "? (false && math_isnan(math_flush", "another",
    ),
    "weights before them that become NaN": Defect(
        "guarded", "= math_isnan(add_4_sum_over", "= false && math_isnan(add_4_sum_over", "another",
    ),
    "NaN where no key counts": Defect(
        "guarded", ": (math_isnan(add_4_sum_all", ": (false && math_isnan(add_4_sum_all", "another",
    ),
    "no barrier before weights change": Defect(
        "f32", "    barrier();\n    {\n      const i64 i0_4_in_", "    {\n      const i64 i0_4_in_",
        "race: ",
    ),
    "no barrier before exponentials": Defect(
        "f32", "    barrier();\n    {\n      const i64 i0_6_i1", "    {\n      const i64 i0_6_i1",
        "race: ",
    ),
}  # fmt: skip


def problem(emulator: Emulator, one: Scheduled, _: str) -> str:
    """What is wrong with a kernel, in any order; or ""."""
    sizes = {"n": 5, "m": 70}
    arrays = data(one.func, sizes)
    arrays["in3"][..., 3, :] = np.linspace(9, 0, 70)
    arrays["in3"][..., 1, :] = -np.inf
    arrays["in3"][..., 2, :40] = -np.inf
    arrays["in3"][..., 4, 69] = np.nan
    with np.errstate(all="ignore"):
        want = run_func(one.func, sizes, arrays)["out"]
    for order in ("forward", "shuffled"):
        try:
            got = emulate(emulator, one, arrays, sizes, order)["out"]
        except EmulationError as error:
            return str(error)
        if not np.allclose(got, want, rtol=1e-5, atol=1e-5, equal_nan=True):
            return WRONG
    return ""


def test_every_defect_of_blocks_is_found() -> None:
    cases = {"f32": "f32", "guarded": "f32, guarded"}
    good = {n: in_blocks(CASES[c](), f"good_{n}", 8, 32) for n, c in cases.items()}
    assert missed(good, DEFECTS, problem) == []
