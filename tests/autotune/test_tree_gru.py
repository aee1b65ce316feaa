import sys
from dataclasses import replace
from random import Random

import pytest

from dlc.autotune import job as jobs
from dlc.autotune import task_search
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.build import build_job
from dlc.autotune.cost_model import Description, Sample, rank_correlation
from dlc.autotune.cost_models import COST_MODELS, begin_model
from dlc.autotune.design import families, make_trace
from dlc.autotune.log import TuningLog
from dlc.autotune.loop_tree import WIDTH, parse_tree, print_tree, tree_of
from dlc.autotune.search.searcher import make_design
from dlc.autotune.session import Machines, Options, Weighted
from dlc.autotune.tuner import Tuner
from dlc.core.errors import UserError
from dlc.schedule.pipeline import tidy
from dlc.schedule.text import parse_func
from dlc.schedule.trace import Trace
from tests.autotune import examples, landscape
from tests.autotune.landscape import Landscape

COPY = """
def copy(x: f32[{n}, {m}], *, out: f32[{n}, {m}]):
    for i in range({n}):
        for j in range({m}):
            out[i, j] = x[i, j] + 1.0
"""
TASK = examples.matmul(target=examples.OTHER)


def nests(count, seed):
    """Copies, some with vectors and threads; a formula says how fast they are."""
    rng = Random(seed)
    found = []
    for _ in range(count):
        n, m = rng.choice((8, 16, 64)), rng.choice((32, 64, 128))
        trace = Trace(parse_func(COPY.format(n=n, m=m)))
        score = 0.0
        if rng.random() < 0.5:
            width = rng.choice((4, 16))
            trace.do("vectorize", trace.split("j", width)[1])
            score += 1.0 if width == 16 else 0.5
        if rng.random() < 0.5:
            trace.do("parallel", "i")
            score += 2.0 if n > 8 else -1.0
        seen = Description(tree=print_tree(tree_of(trace.func, {})))
        found.append(Sample("copy", seen, score))
    return found


def test_it_learns_what_a_tree_says():
    pytest.importorskip("torch")
    model = begin_model("tree-gru", None)
    known, test = nests(48, 1), nests(32, 2)
    seen = [s.seen for s in test]
    assert not model.is_ready
    assert model.predict(seen) == [0.0] * 32
    model.fit(known[:7])  # too few
    model.fit([replace(s, seen=Description()) for s in known])  # made for another cost model
    model.fit([replace(s, score=float("nan")) for s in known])
    model.fit([replace(s, score=1.0) for s in known])  # nothing to learn
    assert not model.is_ready
    model.fit(known)
    predicted = model.predict(seen)
    assert rank_correlation(predicted, [s.score for s in test]) > 0.8
    assert model.predict([]) == []
    assert model.predict([Description(), seen[0]]) == pytest.approx([0.0, predicted[0]], abs=1e-5)
    model.fit([replace(s, score=-s.score) for s in known])  # what was learned before is forgotten
    assert rank_correlation(model.predict(seen), [s.score for s in test]) < -0.8


def test_the_numbers_of_others_stay_as_they_are():
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    begin_model("tree-gru", None).fit(nests(10, 1))
    assert torch.equal(torch.rand(3), drawn)


def test_a_tree_holds_loops_stores_and_sizes():
    root = tree_of(examples.matmul(target=examples.OTHER).func, {})
    assert len(root.children) == 2
    assert len(root.numbers) == WIDTH
    (row,) = root.children[0].children
    assert [len(c.children) for c in row.children] == [0, 1]
    scale = examples.scale().func
    assert tree_of(scale, {"n": 5}) != tree_of(scale, {"n": 6})
    assert tree_of(scale, {"n": 0}).children[0].numbers[0] == 0


def test_a_tree_is_read_as_it_was_written():
    def rounded(node):
        numbers = tuple(round(x, 4) for x in node.numbers)
        return replace(node, numbers=numbers, children=tuple(map(rounded, node.children)))

    root = tree_of(examples.softmax().func, {})
    text = print_tree(root)
    assert parse_tree(text) == rounded(root)
    assert parse_tree(text) is parse_tree(text)
    for bad in ("", "[", "[]", "[[999,1]]", "[[1]]", '[["a",1]]', "3"):
        assert parse_tree(bad) is None


def test_a_worker_sends_the_tree_of_a_candidate_that_was_asked_for():
    task = examples.matmul()
    family = families(task)[0]
    design = make_design(family, next(iter(family.space.points())))
    asked = jobs.build_design(task, design, code=False, tree=True)
    tree = build_job(asked.data).data["tree"]
    assert tree == print_tree(tree_of(tidy(make_trace(task, design).func), {}))
    assert "tree" not in build_job(jobs.build_design(task, design, code=False).data).data


@pytest.fixture
def landscape_tasks(monkeypatch):
    monkeypatch.setattr(task_search, "families", lambda task: (landscape.family(),))
    return [Weighted(TASK)]


def tune(tasks, path, trials, cost_model, seed=0):
    machine = Landscape()
    options = Options(
        Budget(trials=trials),
        "evolutionary",
        Method(rounds=3),
        batch=10,
        seed=seed,
        cost_model=cost_model,
    )
    with TuningLog(path) as log:
        tuner = Tuner(tasks, log, Machines(machine, machine), options)
        return tuner, tuner.run()


def test_a_search_asks_it_and_the_next_one_learns_from_the_log(landscape_tasks, tmp_path):
    pytest.importorskip("torch")
    path = tmp_path / "a.db"
    tuner, outcome = tune(landscape_tasks, path, 40, "tree-gru")
    assert tuner.model.reads_trees
    with TuningLog(path) as log:
        trials = list(log.trials())
    assert all(parse_tree(t.tree) is not None for t in trials)
    assert sum(t.predicted is not None for t in trials) == 30
    assert outcome.snapshot.correlation > 0.5
    by_chance = landscape.median_best_by_chance(40)
    assert outcome.choices[TASK.key].speedup > by_chance
    tuner, _ = tune(landscape_tasks, path, 4, "tree-gru", seed=1)
    assert [t.predicted is not None for t in tuner.searches[0].trials[-4:]] == [True] * 4
    # Boosted trees learn from the same rows, and write rows without trees.
    tuner, _ = tune(landscape_tasks, path, 4, "xgboost", seed=2)
    assert tuner.model.is_ready
    assert {t.tree for t in tuner.searches[0].trials[-4:]} == {""}


def test_an_unknown_or_missing_cost_model_is_refused(monkeypatch):
    with pytest.raises(UserError, match="cost model 'oracle'") as caught:
        Options(cost_model="oracle")
    assert all(name in caught.value.hint for name in COST_MODELS)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="needs torch"):
        Options(cost_model="tree-gru")
    assert Options().cost_model == "xgboost"
