"""Ways through the graph: which are tried, how they are judged, and what becomes of them."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import helper, numpy_helper

import dlc
from dlc import tune_graph, tune_model, tune_race
from dlc.autotune.apply import load_records
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.log import TuningLog
from dlc.autotune.session import Options, Weighted
from dlc.autotune.task import task_key
from dlc.autotune.tuner import Outcome, Tuner
from dlc.autotune.versions import versions
from dlc.core.fork import Choices, Fork, Way
from dlc.core.target import Target
from dlc.lowering import lower_model
from dlc.tune_graph import Alternative, Crossroads, find_alternatives, forks_of, promised_cycles
from dlc.tune_plan import plan_tuning
from dlc.tune_race import Racers, Races, keep_winners
from tests.autotune import examples
from tests.cli.models import model

WIDE = Target(features=frozenset({"avx512f", "fma", "avx2"}), l2_bytes=1 << 20)
FORK = Fork("winograd", 1, "a", WIDE, "highest", ("direct", "other"), "direct", (100.0, 120.0))
WAY = Alternative(FORK, "other", {"a": 2, "b": 1}, {"c": 2})
TIMES = {"a": 30.0, "b": 20.0, "c": 36.0}


def convolutions(channels=48, pixels=14, count=2):
    """Some convolutions of the same shape, one after the other."""
    rng = np.random.default_rng(0)
    names = ["x", *(f"h{i}" for i in range(1, count)), "y"]
    nodes, weights = [], []
    for i in range(count):
        w = rng.integers(-1, 2, (channels, channels, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        inputs = [names[i], f"w{i}"]
        nodes.append(helper.make_node("Conv", inputs, [names[i + 1]], pads=[1] * 4))
    shape = (1, channels, pixels, pixels)
    return model(nodes, ["x"], ["y"], weights, shape, shape)


def winograd(models):
    """The one decision that the convolutions of models have about themselves."""
    ((fork, met),) = [(f, n) for f, n in forks_of(models).items() if f.kind == "winograd"]
    return fork, met


def test_a_way_is_judged_by_all_that_it_changes():
    assert WAY.speedup(TIMES) == pytest.approx(80 / 72)
    assert WAY.saved_ns(TIMES) == pytest.approx(8)
    for unknown in ({"a": 30.0, "b": 20.0}, TIMES | {"b": float("inf")}):
        assert WAY.speedup(unknown) is None
        assert WAY.saved_ns(unknown) == 0
        assert not Crossroads((WAY,)).promising(unknown)
        assert not Crossroads((WAY,)).hopeless(unknown)
    decision = WAY.decision(TIMES)
    assert (decision.speedup, decision.is_better) == (1.1111, False)


def test_only_what_has_hope_is_searched_and_only_what_is_faster_is_raced():
    better = replace(WAY, fork=replace(FORK, about="b"), come={"d": 1})
    worse = replace(WAY, fork=replace(FORK, about="c"), come={"e": 3})
    task = examples.scale()
    tasks = [replace(Weighted(task), task=_Named(key)) for key in "cde"]
    roads = Crossroads((WAY, better, worse), tuple(tasks))
    times = TIMES | {"d": 10.0, "e": 36.0}
    assert set(roads.rejected(times)) == {"e"}
    assert roads.promising(times) == [better, WAY]
    assert roads.hopeless(times) == [worse]
    assert [v.status for v in roads.views(times)] == ["timed", "timed", "slower"]
    assert [v.status for v in roads.views({})] == ["waiting"] * 3
    twin = replace(WAY, option="direct", come={"d": 1})  # of two ways at a fork the better one
    assert Crossroads((WAY, twin)).promising(times) == [twin]


class _Named:
    """A task that has nothing but a key."""

    def __init__(self, key):
        self.key = key


def test_the_model_of_costs_says_what_is_worth_a_try():
    assert promised_cycles(FORK, "other", "direct", 3) == pytest.approx(3 * 10)
    assert promised_cycles(FORK, "direct", "other") == pytest.approx(56)
    far = replace(FORK, cycles=(100.0, 131.0))
    assert promised_cycles(far, "other", "direct") < 0
    assert promised_cycles(replace(FORK, cycles=()), "other", "direct") == 0


def test_ways_are_found_by_what_they_change(monkeypatch):
    plan = plan_tuning([convolutions()], WIDE)
    fork, met = winograd(plan.models)
    assert (fork.default, met) == ("tiles of 2 by 2", 2)
    rest = {(f.key, o) for f in forks_of(plan.models) for o in f.options if f != fork}
    assert find_alternatives(plan, rest).alternatives == ()  # without a chance
    monkeypatch.setattr(tune_graph, "MODEL_ERROR", 9.0)
    roads = find_alternatives(plan, rest)
    (way,) = roads.alternatives
    assert (way.option, sum(way.gone.values()), sum(way.come.values())) == ("direct", 2, 2)
    assert set(way.gone) <= {w.task.key for w in plan.tasks}
    assert {w.task.key for w in roads.tasks} == set(way.come)
    assert all(w.is_alternative for w in roads.tasks)
    assert {w.task.key: w.calls for w in roads.tasks} == dict(way.come)
    assert find_alternatives(plan, seconds=0.0).alternatives == ()
    assert find_alternatives(plan, rest | {(fork.key, "direct")}).alternatives == ()
    only = replace(plan, tasks=())  # what goes is not timed
    assert find_alternatives(only).alternatives == ()
    back = plan_tuning(
        [convolutions()], WIDE, ways=Choices({fork.key: Way("direct", fork.default)})
    )
    assert "tiles of 2 by 2" in [w.option for w in find_alternatives(back).alternatives]


def test_a_bundle_is_kept_whole_or_not_at_all(monkeypatch):
    task = examples.matmul(target=examples.OTHER)
    kernels = {k: examples.choice(task) for k in "ab"}
    won, lost = WAY.decision(TIMES), replace(WAY, fork=replace(FORK, about="z")).decision(TIMES)
    parts = [{won.key: won, "k": examples.choice(task)}, {lost.key: lost, "l": kernels["a"]}]

    class Judged:
        def __init__(self, *_):
            self.count = 0

        def speedup(self, new, old):
            self.count += 1
            return 0.0 if lost.key in new else 1.25

    monkeypatch.setattr(tune_race, "Races", Judged)
    nothing = Racers((), {}, {})
    kept, speedup = keep_winners(nothing, kernels, {}, None, None, parts)
    assert set(kept) == {"a", "b", won.key, "k"}
    assert kept[won.key].is_better
    assert speedup == 1.25
    assert keep_winners(nothing, {}, {}, None, None, parts[1:]) == ({}, 1.0)


def test_models_are_raced_with_the_ways_they_hold(monkeypatch, tmp_path):
    plan = plan_tuning([convolutions(), convolutions(16, 5, 1)], WIDE)
    fork, _ = winograd(plan.models[:1])
    way = Alternative(fork, "direct").decision({})
    built = []

    def note(model, path, records, schedule):
        built.append((str(model.program), [c for c in records.choices]))
        path.write_text("")

    monkeypatch.setattr(tune_race, "assemble", note)
    races = Races(Racers(plan.models, plan.sizes, {}), None, tmp_path)
    paths = {races._build(n, choices) for n in (0, 1) for choices in ({}, {way.key: way})}
    assert len(paths) == 3  # the second model has no such fork
    direct = lower_model(convolutions(), WIDE, choices=Choices({fork.key: way.way}))
    assert [program for program, _ in built].count(str(direct.program)) == 1
    assert [program for program, _ in built].count(str(plan.models[0].program)) == 1
    kept = {task_key(k, WIDE) for k in direct.program.kernels}
    kernel = examples.choice(next(w.task for w in plan.tasks if w.task.key not in kept))
    races._build(0, {kernel.task: kernel})
    races._build(0, {kernel.task: kernel, way.key: way})  # where the kernel is gone
    assert [keys for _, keys in built[3:]] == [[kernel.task]]


@pytest.mark.parametrize("wins", [True, False])
def test_a_session_keeps_a_way_only_if_the_model_wins(monkeypatch, tmp_path, wins):
    """Times and races are made up; all else is as it is."""
    source, log = convolutions(), tmp_path / "m.tune.db"
    forks = lower_model(source, examples.native(), lists_forks=True).forks
    known = [f for f in forks if f.kind == "winograd"]
    if not known:
        pytest.skip("the vectors of this machine leave nothing to decide")
    fork = known[0]
    (other,) = fork.others
    monkeypatch.setattr(tune_graph, "forks_of", lambda _: {fork: len(known)})
    monkeypatch.setattr(tune_graph, "MODEL_ERROR", 99.0)
    monkeypatch.setattr(tune_graph, "HOPELESS", 0.0)
    monkeypatch.setattr(Tuner, "times_ns", property(_alternatives_are_fast))
    monkeypatch.setattr(Races, "_one", lambda *_: 1.2 if wins else 0.0)
    options = Options(Budget(trials=2), method=Method(rounds=3), batch=2)
    report = dlc.tune(source, log, options=options)
    assert [(v.option, v.status) for v in report.snapshot.ways] == [
        (other, "won" if wins else "lost")
    ]
    assert {k: d.way for k, d in report.ways.items()} == (
        {fork.key: Way(other, fork.default)} if wins else {}
    )
    assert load_records(log).ways.ways.keys() == report.ways.keys()
    with TuningLog(log, read_only=True) as opened:
        (decision,) = opened.decisions()
        assert (decision.option, decision.is_better) == (other, wins)
        assert dict(decision.versions) == dict(versions())
    again = dlc.tune(source, log, options=replace(options, budget=Budget(trials=0)))
    assert again.ways.keys() == report.ways.keys()
    assert [v.option for v in again.snapshot.ways] == ([fork.default] if wins else [])
    plain = dlc.tune(source, tmp_path / "n.db", options=options, graph=False)
    assert plain.snapshot.ways == ()
    assert not any(t.is_alternative for t in plain.snapshot.tasks)


def _alternatives_are_fast(tuner):
    return {s.key: 1.0 if s.weighted.is_alternative else 100.0 for s in tuner.searches}


def _alternatives_are_slow(tuner):
    return {s.key: 1000.0 if s.weighted.is_alternative else 1.0 for s in tuner.searches}


def test_hopeless_ways_are_not_searched_and_not_tried_again(monkeypatch, tmp_path):
    source, log = convolutions(), tmp_path / "m.tune.db"
    monkeypatch.setattr(tune_graph, "MODEL_ERROR", 99.0)
    monkeypatch.setattr(tune_graph, "HOPELESS", 1e9)  # whatever the clock says of defaults
    monkeypatch.setattr(Tuner, "times_ns", property(_alternatives_are_slow))  # and of the best
    options = Options(Budget(trials=8), method=Method(rounds=3), batch=2)
    first = dlc.tune(source, log, options=options)
    assert first.snapshot.ways
    assert {w.status for w in first.snapshot.ways} == {"slower"}
    others = [t for t in first.snapshot.tasks if t.is_alternative]
    assert others
    assert {(t.trials, t.status) for t in others} == {(0, "of a slower way")}
    with TuningLog(log, read_only=True) as opened:
        assert len({(d.key, d.option) for d in opened.decisions()}) == len(first.snapshot.ways)
        assert not any(d.is_better for d in opened.decisions())
    rest = replace(options, budget=Budget(trials=0))
    assert dlc.tune(source, log, options=rest).snapshot.ways == ()
    again = dlc.tune(source, log, options=replace(rest, resume=False))
    assert len(again.snapshot.ways) == len(first.snapshot.ways)


def test_ctrl_c_in_a_race_keeps_no_way(monkeypatch, tmp_path):
    plan = plan_tuning([convolutions()], WIDE)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_model, "keep_winners", interrupted)
    times = {w.task.key: 100.0 for w in plan.tasks} | {"c": 1.0}
    fork, _ = winograd(plan.models)
    way = Alternative(fork, "direct", {plan.tasks[0].task.key: 2}, {"c": 2})
    found = tune_model._Found(Outcome(), Crossroads((way,)), times)
    with TuningLog(tmp_path / "log.db") as log:
        verdict = tune_model._judge(plan, found, log, None, in_model=True)
        assert (verdict.ways, found.outcome.interrupted) == ({}, True)
        assert list(log.decisions()) == []
