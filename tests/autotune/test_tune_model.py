from dataclasses import replace

import numpy as np
import pytest
from onnx import helper

import dlc
from dlc import tune_model, tune_race
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.design import families
from dlc.autotune.log import TuningLog
from dlc.autotune.record import choice_from_json
from dlc.autotune.session import Options
from dlc.autotune.tuner import Outcome
from dlc.core.errors import TargetError, UserError
from dlc.core.machine import host_arch
from dlc.core.types import INDEX
from dlc.schedule.loop import Buffer
from dlc.schedule.program import BindSize, CallKernel, HostIf, HostLoop, Program, SizeVar
from dlc.te.expr import Load, Var, index
from dlc.te.types import TensorType
from dlc.tune_plan import extract_tasks, plan_tuning
from dlc.tune_race import Racers, Races, keep_winners
from tests.autotune import examples
from tests.autotune.test_apply import choice_for
from tests.cli.models import model, perceptron


def test_tasks_are_counted_as_often_as_a_run_calls_them():
    func = examples.scale().func
    n, k, number = Var("n"), Var("k"), Load("x", (index(0),), INDEX)
    call = CallKernel("scale", (n * 2,), ("x", "y"))
    body = (
        call,
        HostLoop("t", n + 1, (call, HostLoop("u", index(2), (call,)))),
        BindSize("k", number + 2, "negative"),
        HostIf(k < 3, (call,), (CallKernel("scale", (k,), ("x", "y")),)),
        HostIf(number < 3, (call,), (call,)),
        HostLoop("v", k - 3, (call,)),
        HostLoop("w", n - 5, (call,)),
    )
    buffers = (Buffer("x", TensorType((n,))),), (Buffer("y", TensorType((n,))),)
    program = Program("p", (SizeVar("n"),), *buffers, (), (func,), (), body)
    (weighted,) = extract_tasks(program, examples.OTHER, {"n": 5})
    assert weighted.calls == 1 + 6 + 12 + 2 + 2 + 1, "both ways, and one step, where data tells"
    assert weighted.task.sizes == (("n", 10),)
    assert weighted.task.func == func


def test_what_sizes_do_not_choose_is_not_called():
    func, n = examples.scale().func, Var("n")
    kernels = (func, replace(func, name="other"))
    call, other = (CallKernel(k.name, (n,), ("x", "y")) for k in kernels)
    x, y = (Buffer(name, TensorType((n,))) for name in "xy")
    sizes, body = (SizeVar("n"),), (HostIf(n < 3, (call,), (other,)),)
    program = Program("p", sizes, (x,), (y,), (), kernels, (), body)
    for elements, wanted in ((2, {"scale": 1}), (3, {"other": 1})):
        found = extract_tasks(program, examples.OTHER, {"n": elements})
        assert {w.task.func.name: w.calls for w in found} == wanted


@pytest.mark.parametrize(
    ("elements", "steps", "is_also_outside", "is_warm"),
    [
        (1000, 50, False, True),
        (1000, 50, True, False),
        (1_000_000, 50, False, False),
        (1000, 1, False, False),
    ],
)
def test_what_a_loop_does_again_is_warm_while_its_data_fit_the_caches(
    elements, steps, is_also_outside, is_warm
):
    func = examples.scale().func
    call = CallKernel("scale", (Var("n"),), ("x", "y"))
    other = CallKernel("scale", (index(100),), ("y", "x"))
    body = (HostLoop("t", index(steps), (call, other)),) + (call,) * is_also_outside
    program = Program("p", (SizeVar("n"),), (), (), (), (func,), (), body)
    (weighted,) = extract_tasks(program, examples.OTHER, {"n": elements})
    assert weighted.is_warm == is_warm
    assert Options().method_of(weighted).cache == ("warm" if is_warm else "cold")
    for cache in ("cold", "warm"):
        assert Options(method=Method(cache=cache)).method_of(weighted).cache == cache


def test_several_models_share_their_tasks():
    plan = plan_tuning([perceptron(), perceptron(2.0)], dims={"batch": (4, 9)})
    ((weighted,)) = plan.tasks
    assert weighted.calls == 2
    assert plan.sizes == {"batch": 4}
    plan = plan_tuning([perceptron()], dims={"batch": (4, 9)}, at={"batch": 7})
    assert plan.sizes == {"batch": 7}
    assert [value for _, value in plan.tasks[0].task.sizes] == [7]
    for at, reason in (({"batch": 3}, "open from 4 to 9"), ({"seq": 3}, "no open size 'seq'")):
        with pytest.raises(UserError, match=reason):
            plan_tuning([perceptron()], dims={"batch": (4, 9)}, at=at)
    with pytest.raises(UserError, match="there is no task 'conv'"):
        plan_tuning([perceptron()], only="conv")


def test_schedules_for_gpus_are_listed_and_not_measured_on_a_cpu(tmp_path):
    plan = plan_tuning([perceptron()], "cuda -arch=sm_90", dims={"batch": 64})
    names = {f.name for w in plan.tasks for f in families(w.task)}
    assert names == {"rule.gpu_contract", "rule.gpu_own"}
    with pytest.raises(TargetError, match="measured on CPUs only") as caught:
        dlc.tune(perceptron(), tmp_path / "m.tune.db", "cuda")
    assert "--dry-run" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


def test_what_this_machine_cannot_run_is_not_measured_here(tmp_path):
    elsewhere = "x86_64" if host_arch() == "aarch64" else "aarch64"
    with pytest.raises(TargetError, match="this machine cannot run") as caught:
        dlc.tune(perceptron(), tmp_path / "m.tune.db", f"llvm -mtriple={elsewhere}-linux-gnu")
    assert "--runner" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


def test_tuning_a_model_end_to_end(tmp_path):
    log = tmp_path / "m.tune.db"
    options = Options(Budget(trials=5), method=Method(rounds=3), batch=4)
    seen = []
    report = dlc.tune(perceptron(), log, dims={"batch": 32}, options=options, on_update=seen.append)
    assert report.snapshot.trials == 5
    assert not report.interrupted
    assert seen[-1].finished
    with TuningLog(log, read_only=True) as opened:
        trials = list(opened.trials())
        assert len(trials) == 5
        assert {t.status for t in trials} <= {"ok", "invalid"}
        assert sum(t.status == "ok" for t in trials) >= 3
        assert all(c.is_better == (k in report.choices) for k, c in opened.choices().items())
    module = dlc.compile(perceptron(), dims={"batch": 32}, tuning=log)
    x = np.ones((32, 5), np.float32)
    np.testing.assert_array_equal(module(x), dlc.compile(perceptron(), tuning="none")(x))
    with pytest.raises(UserError, match="needs a log"):
        dlc.tune(perceptron())


NOTHING = Racers((), {}, {})


class Judged:
    """Everything with 'b' in it is slower; 'c' alone changes nothing."""

    def __init__(self, *_):
        self.count = 0

    def speedup(self, new, old):
        self.count += 1
        added = {k for k in new if new[k] != old.get(k)}
        if "b" in added or added == {"c"}:
            return 0.0
        return 1.0 + 0.1 * len(added)


def test_only_choices_that_win_in_the_model_are_kept(monkeypatch):
    task = examples.matmul(target=examples.OTHER)
    choices = {k: examples.choice(task) for k in "abcd"}
    monkeypatch.setattr(tune_race, "Races", Judged)
    kept, speedup = keep_winners(NOTHING, choices, {}, None)
    assert set(kept) == {"a", "c", "d"}
    assert speedup == pytest.approx(1.3)
    assert {c.model_speedup for c in kept.values()} == {1.3}
    assert keep_winners(NOTHING, {"b": choices["b"]}, {}, None) == ({}, 1.0)
    # Without time the first race counts alone, whether it is won or lost.
    assert keep_winners(NOTHING, choices, {}, None, until=0.0) == ({}, 1.0)
    kept, _ = keep_winners(NOTHING, {k: choices[k] for k in "ad"}, {}, None, until=0.0)
    assert set(kept) == {"a", "d"}


def test_what_won_earlier_stays_unless_it_is_beaten(monkeypatch):
    task = examples.matmul(target=examples.OTHER)
    first, better = examples.choice(task), replace(examples.choice(task), nest="better")
    old = {"a": first, "d": first}
    monkeypatch.setattr(tune_race, "Races", Judged)
    kept, speedup = keep_winners(NOTHING, {"b": better, "c": better}, old, None)
    assert (kept, speedup) == (old, first.model_speedup)
    kept, speedup = keep_winners(NOTHING, {"a": better}, old, None)
    assert (kept["a"].nest, kept["a"].model_speedup, kept["d"]) == ("better", 1.2, first)
    assert speedup == pytest.approx(1.2)


def test_a_session_that_finds_nothing_takes_nothing_back(monkeypatch, tmp_path):
    plan = plan_tuning([perceptron()], dims={"batch": 32})
    (task,) = [w.task for w in plan.tasks]
    incumbent = replace(choice_for(task), model_speedup=1.25)
    lost = replace(incumbent, nest="slower", model_speedup=0.0)
    monkeypatch.setattr(tune_race, "Races", Slower)
    with TuningLog(tmp_path / "log.db") as log:
        log.add_task(task)
        log.add_choice(incumbent)
        for in_model in (True, False):
            for found in ({}, {task.key: incumbent}, {task.key: lost}):
                outcome = Outcome(found)
                verdict = tune_model._judge(
                    plan, tune_model._Found(outcome), log, None, in_model=in_model
                )
                assert (dict(verdict.choices), verdict.found) == ({task.key: incumbent}, 0)
                assert verdict.rejected == (found == {task.key: lost})
                assert verdict.speedup == 1.25
                assert log.choices() == {task.key: incumbent}
        log.add_choice(replace(incumbent, default_nest="another", made_at=1.0))
        verdict = tune_model._judge(
            plan, tune_model._Found(Outcome({task.key: lost})), log, None, in_model=True
        )
        assert (dict(verdict.choices), verdict.rejected) == ({}, 1)  # it holds no longer
        assert lost in all_choices(log)


def judge(plan, outcome, log, **options):
    return tune_model._judge(plan, tune_model._Found(outcome), log, None, **options)


def all_choices(log):
    return [choice_from_json(data) for data in log._read("choices", None)]


class Slower(Judged):
    """Nothing is faster."""

    def speedup(self, new, old):
        return 0.0


def test_ctrl_c_while_a_model_is_raced_keeps_the_log_as_it_was(monkeypatch, tmp_path):
    plan = plan_tuning([perceptron()], dims={"batch": 32})
    choice = choice_for(plan.tasks[0].task)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_model, "keep_winners", interrupted)
    outcome = Outcome({choice.task: choice})
    with TuningLog(tmp_path / "log.db") as log:
        verdict = judge(plan, outcome, log, in_model=True)
        assert (verdict.choices, outcome.interrupted, log.choices()) == ({}, True, {})


def test_a_model_without_the_kernel_has_no_say(monkeypatch, tmp_path):
    plan = plan_tuning([perceptron(), shifted(), perceptron(3.0)], dims={"batch": 32})
    (dense, _), (shift, _) = [(w.task.key, w.calls) for w in plan.tasks]
    asked = []

    def one(_, number, model, new, old):
        asked.append(number)
        return 1.5 + number

    monkeypatch.setattr(Races, "_one", one)
    races = Races(Racers(plan.models, plan.sizes, {}), None, tmp_path)
    choice = examples.choice(plan.tasks[0].task)
    assert races.speedup({dense: choice}, {}) == 1.5
    assert races.speedup({dense: choice, shift: choice}, {dense: choice}) == 2.5
    assert races.speedup({"gone": choice}, {}) == 0.0
    assert asked == [0, 2, 1]


def shifted():
    return model(
        [helper.make_node("Sin", ["x"], ["y"])], ["x"], ["y"], [], ("batch", 9), ("batch", 9)
    )
