import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import pytest

from dlc.autotune import task_search
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget, parse_budget
from dlc.autotune.cost_model import (
    Description,
    Sample,
    XGBoostModel,
    rank_correlation,
    sample_of,
)
from dlc.autotune.design import Design
from dlc.autotune.features import NAMES
from dlc.autotune.job import Reply
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Status
from dlc.autotune.search import SEARCHERS
from dlc.autotune.search.evolutionary import Evolutionary
from dlc.autotune.search.searcher import Problem, cross, draw_new, make_design, mutate
from dlc.autotune.session import Machines, Options, Weighted
from dlc.autotune.task_scheduler import Course, next_task
from dlc.autotune.tuner import Tuner
from dlc.autotune.versions import FEATURES, versions
from dlc.core.errors import UserError
from dlc.schedule.space import Limit, Space
from tests.autotune import examples, landscape
from tests.autotune.landscape import BEST, SPACE, Landscape

TASK = examples.matmul(target=examples.OTHER)


def problem(seed=0, predict=None, space=SPACE):
    return Problem((landscape.family(space),), Random(seed), predict)


def by_truth(designs):
    return [landscape.speedup(d) for d in designs]


def explore(name, trials, seed=0, predict=None):
    """The best speed-up a search finds, and the designs it measured."""
    found = problem(seed, predict)
    searcher = SEARCHERS[name](found)
    measured = []
    while len(measured) < trials:
        designs = searcher.propose(min(16, trials - len(measured)))
        assert designs
        for design in designs:
            assert design not in found.seen
            assert SPACE.allows(dict(design.knobs))
            found.seen.add(design)
            found.scores[design] = landscape.speedup(design)
        measured += designs
    assert len(set(measured)) == len(measured) == trials
    return max(found.scores.values()), measured


@pytest.mark.parametrize("name", sorted(SEARCHERS))
def test_a_search_is_reproducible_and_repeats_nothing(name):
    assert explore(name, 64, 5, by_truth) == explore(name, 64, 5, by_truth)
    if name != "grid":
        assert explore(name, 64, 5, by_truth) != explore(name, 64, 6, by_truth)


def test_guided_searches_beat_chance():
    def median(name, trials, predict):
        return sorted(explore(name, trials, seed, predict)[0] for seed in range(5))[2]

    by_chance = median("random", 96, None)
    assert by_chance < BEST
    for name in ("evolutionary", "annealing"):
        assert median(name, 96, by_truth) > by_chance
    assert median("genetic", 96, None) >= by_chance
    assert median("evolutionary", 96, None) >= by_chance


@pytest.mark.parametrize("name", sorted(SEARCHERS))
def test_a_small_space_is_exhausted(name):
    space = Space({"x": (1, 2), "y": (1, 2, 3), "z": (0,)}, (Limit(("x", "y"), 4),))
    found = problem(0, by_truth, space)
    searcher = SEARCHERS[name](found)
    seen = set()
    for _ in range(20):
        designs = searcher.propose(4)
        found.seen |= set(designs)
        seen |= set(designs)
        found.scores |= {d: 1.0 for d in designs}
    assert len(seen) == 5  # all but x=2, y=3
    assert searcher.propose(4) == []


def test_moves_keep_to_the_space():
    found = problem()
    one, other = draw_new(found, 2)
    for _ in range(200):
        near = mutate(found, one)
        assert near != one
        assert SPACE.allows(dict(near.knobs))
        child = cross(found, one, other)
        if child is not None:
            for (_, v), (_, a), (_, b) in zip(child.knobs, one.knobs, other.knobs, strict=True):
                assert v in (a, b)
    assert mutate(found, Design("gone", ())) is None
    assert cross(found, one, Design("gone", ())) is None
    single = problem(space=Space({"x": (1,)}))
    assert mutate(single, make_design(single.families[0], {"x": 1})) is None


def test_a_proposal_is_varied():
    found = problem(1, by_truth)
    chosen = Evolutionary(found).propose(16)
    near = [
        sum(sum(a != b for a, b in zip(d.knobs, e.knobs, strict=True)) <= 1 for e in chosen)
        for d in chosen
    ]
    assert sum(near) / len(near) < 6


def test_limits_leave_analytic_choices_alone():
    space = Space({"a": (0, 2, 9), "b": (-1, 5)}, (Limit(("a", "b"), 9),))
    assert [tuple(p.values()) for p in space.points()] == [(0, -1), (0, 5), (2, -1), (9, -1)]
    assert len(space) == 6


def test_budgets():
    assert parse_budget("90s") == Budget(seconds=90)
    assert parse_budget("1.5m") == Budget(seconds=90)
    assert parse_budget("2h") == Budget(seconds=7200)
    assert parse_budget("2000trials") == parse_budget("2000 trials") == Budget(trials=2000)
    assert parse_budget("until-flat") == Budget()
    long = "1" * 5000
    for text in ("", "10", "m", "-5s", "10 parsecs", f"{long}trials", f"{long}s"):
        with pytest.raises(UserError, match="budget"):
            parse_budget(text)
    assert Budget(seconds=10).share_spent(5, 99) == 0.5
    assert Budget(trials=4).share_spent(5, 99) == 1
    assert Budget(trials=0).share_spent(0, 0) == 1
    assert Budget().share_spent(1e9, 10**9) == 0


def test_the_scheduler_works_where_time_can_be_saved():
    fresh = [Course(100.0), Course(900.0), Course(500.0)]
    assert next_task(fresh, until_flat=False) == 1
    done = [Course(100.0, [0.9]), Course(900.0, [0.99, 0.99, 0.99, 0.99]), Course(500.0, [])]
    assert next_task(done, until_flat=False) == 2  # everyone has a turn first
    done[2].best = [0.5, 0.4]
    assert next_task(done, until_flat=False) == 2  # steep
    done[2].exhausted = True
    assert next_task(done, until_flat=False) == 1
    flat = Course(900.0, [0.9, 0.5, 0.5, 0.5, 0.5, 0.499])
    assert flat.is_flat
    assert not Course(900.0, [0.9, 0.5, 0.5, 0.5, 0.5, 0.4]).is_flat
    assert next_task([flat, done[2]], until_flat=True) is None
    assert next_task([flat, done[2]], until_flat=False) == 0


def samples(task, count, seed, offset=0.0):
    rng = Random(seed)
    found = []
    for _ in range(count):
        knobs = {n: rng.choice(v) for n, v in SPACE.knobs.items()}
        found.append(Sample(task, landscape.seen(knobs), -landscape.time_of(knobs) / 1e4 + offset))
    return found


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_the_model_learns_an_order_and_transfers_it(objective, tmp_path):
    model = XGBoostModel(objective)
    assert not model.is_ready
    assert model.predict([Description((0.0,) * len(NAMES))] * 3) == [0, 0, 0]
    model.fit(samples("a", 5, 0))
    assert not model.is_ready  # too few
    model.fit(samples("a", 150, 1) + samples("b", 50, 2, offset=-2))
    test = samples("c", 60, 3, offset=7)
    predicted = model.predict([s.seen for s in test])
    assert rank_correlation(predicted, [s.score for s in test]) > 0.8
    model.save(tmp_path / "m.ubj")
    again = XGBoostModel(objective)
    assert again.load(tmp_path / "m.ubj")
    assert again.predict([s.seen for s in test]) == predicted


def test_the_model_survives_odd_data():
    model = XGBoostModel()
    model.fit([replace(s, score=float("nan")) for s in samples("a", 50, 0)])
    assert not model.is_ready
    model.fit([replace(s, score=1.0) for s in samples("a", 50, 0)])  # nothing to learn
    assert not model.is_ready
    model.fit([replace(s, seen=Description((1.0,))) for s in samples("a", 50, 0)])
    assert not model.is_ready
    with pytest.raises(UserError, match="nothing yet"):
        model.save("nowhere.ubj")
    with pytest.raises(UserError, match="objective"):
        XGBoostModel("best")


def test_samples_of_trials():
    made_with = (*versions(), FEATURES)
    good = replace(examples.trial(TASK), features=(0.5,) * len(NAMES), versions=made_with)
    assert sample_of(good).score == pytest.approx(0.9, abs=0.3)
    assert sample_of(replace(good, status=Status.WRONG, times_ns=())).score == -5
    assert sample_of(replace(good, features=(0.5,))) is None
    assert sample_of(replace(good, times_ns=())) is None
    for other in (versions(), (*versions(), ("features", "1"))):  # counted otherwise then
        assert sample_of(replace(good, versions=other)) is None


def test_trials_with_features_of_old_are_resumed_and_teach_nothing(landscape_tasks, tmp_path):
    old = tmp_path / "old.db"
    tune(landscape_tasks[:1], tmp_path / "a.db", "20trials")
    with TuningLog(tmp_path / "a.db") as log, TuningLog(old) as aged:
        for trial in log.trials():
            assert FEATURES in trial.versions
            aged.add_trial(replace(trial, versions=versions()))
    tuner, _ = tune(landscape_tasks[:1], old, "0trials")
    assert (tuner.resumed, tuner.samples) == (20, [])
    tuner, _ = tune(landscape_tasks[:1], tmp_path / "a.db", "0trials")
    assert (tuner.resumed, len(tuner.samples)) == (20, 20)


def test_rank_correlation():
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 1], [3, 2, 1]) == 0
    assert rank_correlation([1], [1]) == 0
    assert rank_correlation([1, 2, 2, 3], [1, 5, 5, 9]) == pytest.approx(1)


@pytest.fixture
def landscape_tasks(monkeypatch):
    """Tasks of the landscape."""
    monkeypatch.setattr(task_search, "families", lambda task: (landscape.family(),))
    return [Weighted(TASK, 3), Weighted(examples.softmax(target=examples.OTHER))]


def tune(tasks, path, budget, *, machine=None, search="evolutionary", on_update=None):
    machine = machine or Landscape()
    options = Options(budget=parse_budget(budget), search=search, method=Method(rounds=3))
    with TuningLog(path) as log:
        tuner = Tuner(tasks, log, Machines(machine, machine), options, on_update=on_update)
        return tuner, tuner.run()


def test_times_of_other_caches_are_not_taken_up(landscape_tasks, tmp_path):
    path = tmp_path / "a.db"
    tune(landscape_tasks, path, "20trials")
    again, _ = tune(landscape_tasks, path, "4trials")
    assert again.resumed == 20
    warm = [replace(w, is_warm=True) for w in landscape_tasks]
    other, _ = tune(warm, path, "4trials")
    assert other.resumed == 0
    with TuningLog(path) as log:
        assert [t.cache for t in log.trials()] == ["cold"] * 24 + ["warm"] * 4


def test_a_session_finds_the_best_and_logs_it(landscape_tasks, tmp_path):
    path = tmp_path / "a.db"
    seen = []
    tuner, outcome = tune(landscape_tasks, path, "300trials", on_update=seen.append)
    assert tuner.trials == 300
    assert [c.speedup for c in outcome.choices.values()] == pytest.approx([BEST, BEST], rel=0.05)
    with TuningLog(path) as log:
        trials = list(log.trials())
        assert len(trials) == 300
        assert len(list(log.tasks())) == 2
    assert len({t.nest for t in trials if t.task == TASK.key}) == sum(
        t.task == TASK.key for t in trials
    )
    final = outcome.snapshot
    assert final.trials == 300
    assert final.default_ns == 4 * landscape.DEFAULT_NS
    assert final.best_ns < final.default_ns / 2.9
    assert [round(t.share, 2) for t in final.tasks] == [0.75, 0.25]
    assert final.correlation > 0.3
    assert seen[-1] == final


class Clocked(Landscape):
    """Every measurement takes a second of a clock that is not the machine's."""

    def __init__(self, seconds=1.0):
        super().__init__()
        self.now, self.seconds = 1000.0, seconds

    def measure(self, job):
        self.now += self.seconds
        return super().measure(job)


@pytest.mark.parametrize(("seconds", "budget", "found"), [(1.0, "400s", 2), (15.0, "600s", 1)])
def test_a_budget_of_time_holds_for_the_verdict_too(
    landscape_tasks, tmp_path, monkeypatch, seconds, budget, found
):
    machine = Clocked(seconds)
    monkeypatch.setattr("dlc.autotune.tuner.time.monotonic", lambda: machine.now)
    tuner, outcome = tune(landscape_tasks, tmp_path / "a.db", budget, machine=machine)
    spent = machine.now - tuner.began
    assert tuner.trials > 0
    # A task is confirmed by twelve measurements; those without time wait, the smaller share first.
    assert len(outcome.choices) == found
    assert TASK.key in outcome.choices
    if found == 2:  # 34 s were left for confirming two tasks and a race
        assert 366 <= spent - 24 < 366 + 4
        assert spent <= 400
    assert tuner.deadline == tuner.began + parse_budget(budget).seconds


def test_luck_in_one_process_counts_for_a_quarter(landscape_tasks, tmp_path):
    class Lucky(Landscape):
        """Every fourth process runs a candidate in half of its time."""

        def measure(self, job):
            data = super().measure(job).data
            if self.measured % 4 == 0:
                data = data | {"times_ns": [t // 2 for t in data["times_ns"]]}
            return Reply(data)

    _, outcome = tune(landscape_tasks[:1], tmp_path / "a.db", "300trials", machine=Lucky())
    (choice,) = outcome.choices.values()
    ((_, (knobs,)),) = json.loads(choice.steps)
    true = landscape.DEFAULT_NS / landscape.time_of(dict(knobs))
    assert choice.speedup == pytest.approx(true * 2**0.25, rel=0.01)


def test_the_order_of_the_last_predictions_is_told(landscape_tasks, tmp_path):
    _, outcome = tune(landscape_tasks[:1], tmp_path / "a.db", "64trials")
    assert outcome.snapshot.correlation > 0.5
    _, outcome = tune(landscape_tasks[1:], tmp_path / "b.db", "8trials")
    assert outcome.snapshot.correlation is None  # too few to tell


def test_a_time_taken_while_the_default_was_disturbed_is_taken_again(landscape_tasks, tmp_path):
    class Disturbed(Landscape):
        """Every seventh time the default takes 40 times as long: slow candidates look fast."""

        def measure(self, job):
            data = super().measure(job).data
            if self.measured % 7 == 3 and data["status"] == "ok":
                data = data | {"anchor_ns": [40 * t for t in data["anchor_ns"]]}
            return Reply(data)

    tuner, _ = tune(landscape_tasks[:1], tmp_path / "a.db", "60trials", machine=Disturbed())
    measured = tuner.searches[0].trials
    assert max(t.speedup for t in measured) <= BEST
    assert any(len(t.times_ns) == 6 for t in measured)


def test_a_session_resumes_where_the_last_one_ended(landscape_tasks, tmp_path):
    path = tmp_path / "a.db"
    tune(landscape_tasks, path, "60trials")
    machine = Landscape()
    tuner, _ = tune(landscape_tasks, path, "30trials", machine=machine)
    assert tuner.resumed == 60
    assert len({(t.task, t.knobs) for s in tuner.searches for t in s.trials}) == 90


class Noted(Landscape):
    """Notes the seats that candidates are built at, round by round; the second describes all."""

    def __init__(self):
        super().__init__()
        self.rounds = []

    def run(self, jobs):
        work = list(jobs)
        if all(job.data.get("kind") == "design" and job.data["code"] for job in work):
            self.rounds.append([job.affinity for job in work])
        for position, reply in super().run(work):
            described = reply.data | ({} if work[position].data.get("code") else {"seat": 1})
            yield position, landscape.Reply(described, reply.blobs)


def test_no_builder_waits_for_the_other(landscape_tasks, tmp_path):
    """A twin is replaced by a design for each builder; the next round begins with what is left."""
    machine = Noted()
    tuner, _ = tune(
        landscape_tasks[:1], tmp_path / "a.db", "120trials", search="random", machine=machine
    )
    assert {len(work) for work in machine.rounds} >= {2, 4}
    assert min(len(work) for work in machine.rounds) >= 2
    nests = [t.nest for t in tuner.searches[0].trials]
    assert len(nests) == len(set(nests)) == 120


def test_a_design_is_built_where_it_was_described(landscape_tasks, tmp_path):
    machine = Noted()
    tune(
        landscape_tasks[:1], tmp_path / "a.db", "120trials", search="evolutionary", machine=machine
    )
    assert {1} in [set(work) for work in machine.rounds]


def test_two_tuners_on_one_log_both_progress(landscape_tasks, tmp_path):
    path = tmp_path / "a.db"
    together = threading.Barrier(2)

    def session(budget):
        at_once = []

        def meet(snapshot):
            if snapshot.trials and not at_once:  # each has written before either goes on
                at_once.append(together.wait(60))

        return tune(landscape_tasks[:1], path, budget, search="random", on_update=meet)[0]

    with ThreadPoolExecutor(2) as pool:
        tuners = list(pool.map(session, ("60trials", "40trials")))
    assert [t.trials for t in tuners] == [60, 40]
    with TuningLog(path) as log:
        written = [(t.knobs, t.made_at) for t in log.trials()]
    assert len(set(written)) == len(written) == 100
    tuner, _ = tune(landscape_tasks[:1], path, "4trials")
    assert tuner.resumed == 100


def test_bad_candidates_are_recorded_and_never_chosen(landscape_tasks, tmp_path):
    def broken(knobs):
        return {3: "invalid", 5: "invalid", 7: "timeout"}.get(knobs["x"], "")

    tuner, outcome = tune(
        landscape_tasks[:1], tmp_path / "a.db", "150trials", machine=Landscape(broken)
    )
    assert outcome.choices
    assert set(tuner.failures) <= {"invalid", "timeout"}
    for choice in outcome.choices.values():
        assert '["x", 7]' not in choice.steps


def test_a_family_that_computes_wrongly_is_suspended(landscape_tasks, tmp_path):
    machine = Landscape(lambda knobs: "wrong")
    tuner, outcome = tune(landscape_tasks[:1], tmp_path / "a.db", "500trials", machine=machine)
    assert outcome.choices == {}
    assert tuner.failures["wrong"] <= 16  # one round
    assert outcome.snapshot.tasks[0].status == "exhausted"


def test_a_search_until_flat_ends(landscape_tasks, tmp_path):
    tuner, outcome = tune(landscape_tasks, tmp_path / "a.db", "until-flat")
    assert 64 < tuner.trials < 960
    assert {t.status for t in outcome.snapshot.tasks} <= {"flat", "exhausted"}


def test_ctrl_c_keeps_everything(landscape_tasks, tmp_path):
    path = tmp_path / "a.db"
    calls = []

    def interrupt(snapshot):
        if snapshot.trials == 20 and not calls:
            calls.append(snapshot)
            raise KeyboardInterrupt

    _, outcome = tune(landscape_tasks, path, "500trials", on_update=interrupt)
    assert outcome.interrupted
    with TuningLog(path) as log:
        assert len(list(log.trials())) == 20


def test_a_task_whose_default_fails_is_left_out(landscape_tasks, tmp_path):
    class Failing(Landscape):
        def measure(self, job):
            if "default" in str(job.blobs[0]):
                return landscape.Reply({"status": "crash", "detail": "SIGSEGV"})
            return super().measure(job)

    tuner, outcome = tune(landscape_tasks, tmp_path / "a.db", "50trials", machine=Failing())
    assert tuner.trials == 0
    assert "SIGSEGV" in outcome.snapshot.tasks[0].status


def test_an_unknown_search_is_refused():
    with pytest.raises(UserError, match="dowsing"):
        Options(search="dowsing")


def test_a_default_that_was_disturbed_is_known_better_later(landscape_tasks, tmp_path):
    class Disturbed(Landscape):
        def measure(self, job):
            reply = super().measure(job)
            if "default" in str(job.blobs[0]):
                slow = [50 * landscape.DEFAULT_NS] * 3
                return landscape.Reply(reply.data | {"times_ns": slow, "anchor_ns": slow})
            return reply

    _, outcome = tune(landscape_tasks[:1], tmp_path / "a.db", "5trials", machine=Disturbed())
    assert outcome.snapshot.tasks[0].default_ns == landscape.DEFAULT_NS
