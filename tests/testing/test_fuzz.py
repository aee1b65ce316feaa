"""The fuzzer finds a fault put into the compiler, and makes the model that shows it small."""

from __future__ import annotations

import fcntl
import random
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

from dlc.core.errors import ScheduleError, UserError
from dlc.core.target_parse import parse_target
from dlc.graph.ops.binary import Sub
from dlc.lowering import lower_model
from dlc.te import tensor as te
from dlc.testing import campaign
from dlc.testing.campaign import Summary, read_log, signature
from dlc.testing.check import FAILURES, Verdict, _RandomKnobs, check
from dlc.testing.equivalence import rewrite
from dlc.testing.generate import Sample, draw_sample
from dlc.testing.process import Worker
from dlc.testing.reduce import reduce_sample
from dlc.testing.worker import load_sample, save_sample

SEEDS = range(1000, 1016)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_models_are_right(seed):
    finding = check(draw_sample(seed, cases=False), campaign.request(seed)["variants"], seed)
    assert finding.verdict in (Verdict.OK, Verdict.REFUSED), finding


def two_nodes():
    """(a - b) * c, and a result that has nothing to do with it."""
    nodes = [
        helper.make_node("Sub", ["a", "b"], ["d"]),
        helper.make_node("Mul", ["d", "c"], ["y"]),
        helper.make_node("Relu", ["c"], ["z"]),
    ]
    values = [helper.make_tensor_value_info(n, 1, (3, 5)) for n in "abcyz"]
    graph = helper.make_graph(nodes, "g", values[:3], values[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    rng = np.random.default_rng(0)
    feeds = {n: rng.integers(-4, 4, (3, 5)).astype(np.float32) for n in "abc"}
    return Sample(model, feeds, (), False)


def two_products():
    """Rows of an open number times two matrices; between them, they are bf16 on a matrix engine."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((192, 192)).astype(np.float32), n) for n in "vw"
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["t"]),
        helper.make_node("MatMul", ["t", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, 1, (1, "rows", 192)) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_random_knobs_are_those_of_the_loops_that_are_scheduled():
    engine = parse_target("llvm -mcpu=sapphirerapids")
    kernels = lower_model(two_products(), engine, precision="medium").program.kernels
    assert any("planes" in k.name for k in kernels)
    for seed in range(4):
        steps = [_RandomKnobs(random.Random(seed))(k, engine) for k in kernels]
        assert all(steps)


def test_kernels_for_a_gpu_are_scheduled_without_one(monkeypatch):
    assert check(two_nodes(), ("gpu",)).verdict is Verdict.OK

    def refuse(func, target):
        raise ScheduleError(primitive="bind", func=func.name, reason="there is no such loop")

    monkeypatch.setattr("dlc.testing.check.optimize", refuse)
    finding = check(two_nodes(), ("gpu",))
    assert (finding.verdict, finding.variant) == (Verdict.UNCLEAR, "gpu")


@pytest.fixture
def broken_sub(monkeypatch):
    def wrong(self, a, b):
        return te.elementwise("sub", lambda x, y: x + y, a, b)

    monkeypatch.setattr(Sub, "compute", wrong)
    return monkeypatch


def test_a_fault_in_the_compiler_is_a_mismatch(broken_sub):
    finding = check(two_nodes(), ("plain",))
    assert finding.verdict is Verdict.MISMATCH
    assert finding.variant == "plain"
    assert "'y' at" in finding.detail


def test_an_overflow_on_the_way_is_not_judged_where_no_other_engine_shows_it(monkeypatch):
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["square"]),
        helper.make_node("Sqrt", ["square"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, 1, (2,)) for n in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    sample = Sample(model, {"x": np.asarray([3, 1e30], np.float32)}, (), special=True)
    assert check(sample, ("",)).verdict is Verdict.OK
    monkeypatch.setattr("dlc.testing.check._onnx_reference", lambda *_: None)
    monkeypatch.setattr("dlc.testing.check._onnxruntime", lambda *_: None)
    assert check(sample, ("",)).verdict is Verdict.INVALID
    assert check(replace(sample, special=False), ("",)).verdict is Verdict.MISMATCH


def test_an_engine_may_write_into_its_inputs():
    """onnxruntime writes new statistics over the old ones."""
    names = ["x", "s", "b", "mean", "var"]
    nodes = [
        helper.make_node("BatchNormalization", names, ["y", "m", "v"], training_mode=1),
        helper.make_node("Neg", ["v"], ["z"]),
    ]
    shapes = [(1, 2, 3), *[(2,)] * 4]
    inputs = [helper.make_tensor_value_info(*a) for a in zip(names, [1] * 5, shapes, strict=True)]
    outputs = [helper.make_tensor_value_info("z", 1, [None])]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    rng = np.random.default_rng(0)
    feeds = {n: rng.random(s).astype(np.float32) for n, s in zip(names, shapes, strict=True)}
    assert check(Sample(model, feeds, (), False), ("",)).verdict is Verdict.OK


def test_a_failing_model_is_made_small(broken_sub):
    def fails(sample):
        return check(sample, ("plain",)).verdict is Verdict.MISMATCH

    small = reduce_sample(two_nodes(), fails)
    assert [n.op_type for n in small.model.graph.node] == ["Sub"]
    assert {a.shape for a in small.feeds.values()} == {(1, 1)}


def test_an_error_that_is_no_user_error_is_unclear(monkeypatch):
    def fail(self, a, b):
        raise KeyError("oops")

    monkeypatch.setattr(Sub, "compute", fail)
    finding = check(two_nodes(), ("plain",))
    assert (finding.verdict, finding.detail[:8]) == (Verdict.UNCLEAR, "KeyError")


def test_rewritten_models_mean_the_same():
    sample = two_nodes()
    values = {n: np.zeros((3, 5), np.float32) for n in "abcd"}
    for seed in range(12):
        model = rewrite(sample.model, values, random.Random(seed))
        assert len(model.graph.node) > 3
        assert check(replace(sample, model=model), ()).verdict is Verdict.OK


def test_samples_survive_a_file(tmp_path):
    sample = replace(two_nodes(), special=True)
    sample = replace(sample, others=(sample.feeds,))
    again = load_sample(save_sample(sample, tmp_path))
    assert again.model == sample.model
    assert again.special
    np.testing.assert_array_equal(again.others[0]["b"], sample.feeds["b"])


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced(tmp_path):
    with Worker(tmp_path, 60) as worker:
        worker.send({"seed": 1000})
        assert worker.process is not None
        worker.process.send_signal(signal.SIGSEGV)
        assert worker.wait()["verdict"] == Verdict.CRASH
        path = save_sample(two_nodes(), tmp_path / "m")
        worker.send({"model": str(path)})
        assert worker.wait()["verdict"] == Verdict.OK
        worker.process.send_signal(signal.SIGSTOP)  # while no other engine runs
        worker.send({"model": str(path)})
        worker.deadline = 0
        assert worker.wait()["verdict"] == Verdict.HANG


def test_a_crash_of_another_engine_is_not_ours(tmp_path):
    with Worker(tmp_path, 60) as worker:
        worker.send({"seed": 1000})
        assert worker.process is not None
        worker.process.kill()
        (tmp_path / "worker.log").write_text('Fatal\n  File "x/onnxruntime/run.py", line 1\n')
        assert worker.wait()["verdict"] == Verdict.INVALID
        worker.send({"seed": 1000})
        worker.deadline = 0
        (tmp_path / "worker.log").write_text('Fatal\n  File "x/onnxruntime/run.py", line 1\n')
        assert worker.wait()["verdict"] == Verdict.INVALID


@pytest.mark.slow
def test_one_campaign_at_a_time_writes_to_a_folder(tmp_path):
    with open(tmp_path / "log.jsonl", "a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another campaign"):
            campaign.run([1000], tmp_path, processes=1)
        run = [sys.executable, "-m", "dlc.testing", "--count", "1", "--folder", str(tmp_path)]
        ended = subprocess.run(run, capture_output=True, text=True, check=False)
    assert ended.returncode == UserError.exit_code, ended.stderr
    assert "another campaign" in " ".join(ended.stdout.split())


def test_a_campaign_goes_on_where_it_stopped(tmp_path):
    campaign.run([1000, 1001], tmp_path, processes=1)
    with open(tmp_path / "log.jsonl", "a") as log:
        log.write('{"seed": 1002, "verd')
    assert sorted(read_log(tmp_path / "log.jsonl")) == [1000, 1001]


def test_failures_are_counted_by_what_they_have_in_common():
    summary = Summary()
    for seed, name in ((1, "v1"), (2, "v22")):
        detail = f"KeyError: '{name}' at {seed}"
        summary.add(seed, {"verdict": Verdict.UNCLEAR, "detail": detail, "variant": ""})
    assert list(summary.failures.values()) == [[1, 2]]
    assert Verdict.UNCLEAR in FAILURES
    assert "v1" not in signature({"verdict": Verdict.UNCLEAR, "detail": "'v1'"})
