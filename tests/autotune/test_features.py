"""The cost model's view of a nest: what must move a number, and what must not."""

import pytest

from dlc.autotune.features import NAMES, extract_features
from dlc.schedule.text import parse_func
from dlc.schedule.trace import Trace
from tests.autotune import examples

AVX512 = examples.Target(features=frozenset({"avx512f"}), cores=2)
COPY = """
def copy(x: f32[64, 96], *, out: f32[64, 96]):
    for i in range(64):
        for j in range(96):
            out[i, j] = x[i, j] + 1.0
"""


def features(func, sizes=None, target=AVX512):
    found = extract_features(func, target, sizes or {})
    assert len(found) == len(NAMES)
    return dict(zip(NAMES, found, strict=True))


def scheduled(*steps):
    trace = Trace(parse_func(COPY))
    for name, *args in steps:
        trace.do(name, *args)
    return features(trace.func)


def test_each_step_of_a_schedule_shows():
    plain = scheduled()
    assert plain["iterations_0"] == pytest.approx(12.585, abs=0.01)  # log2(1 + 64 * 96)
    assert (plain["scalar_share"], plain["serial_share"], plain["stores"]) == (1, 1, 1)
    assert (plain["add_0"], plain["streams_0"]) == (1, 2)
    lanes = scheduled(("split", "j", 16, ("jo", "ji")), ("vectorize", "ji"))
    assert lanes["scalar_share"] == 0
    assert lanes["lanes_0"] > 4
    assert lanes["contiguous_0"] == 2
    assert lanes["vector_operations"] < plain["vector_operations"]
    threads = scheduled(("parallel", "i"))
    assert (threads["serial_share"], threads["parallel_extent_0"] > 6) == (0, True)
    out = scheduled(("split", "j", 8, ("jo", "ji")), ("unroll", "ji"))
    assert out["written_out_0"] > plain["written_out_0"]
    assert out["instructions"] > plain["instructions"]
    rows = scheduled(("reorder", ("j", "i")))
    assert rows["from_l2"] > plain["from_l2"] + 2  # a cache line for each element


def test_access_along_columns_is_seen():
    text = COPY.replace("x[i, j]", "x[j % 64, i]").replace("def copy", "def turn")
    trace = Trace(parse_func(text))
    trace.do("split", "j", 16, ("jo", "ji"))
    trace.do("vectorize", "ji")
    assert features(trace.func)["gathered_0"] == 1


def test_what_does_not_fit_a_cache_moves_again():
    task = examples.matmul(64, 512, 512)
    small = examples.Target(features=frozenset({"avx512f"}), l1_bytes=1 << 12, l2_bytes=1 << 14)
    large = examples.Target(features=frozenset({"avx512f"}), l1_bytes=1 << 24, l2_bytes=1 << 25)
    assert (
        features(task.func, target=small)["from_l2"] > features(task.func, target=large)["from_l2"]
    )


def test_names_do_not_count_and_sizes_do():
    task = examples.scale()
    renamed = parse_func(str(task.func).replace("a: ", "b: ").replace("a[", "b["))
    assert features(task.func, {"n": 50}) == features(renamed, {"n": 50})
    assert features(task.func, {"n": 50}) != features(task.func, {"n": 5000})
    empty = features(task.func, {"n": 0})
    assert all(value == value for value in empty.values())
