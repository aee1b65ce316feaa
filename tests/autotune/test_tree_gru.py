from random import Random

import pytest

from dlc.autotune.cost_model import rank_correlation
from dlc.autotune.tree_gru import WIDTH, TreeGRU, TreeSample, tree_of
from dlc.schedule.text import parse_func
from dlc.schedule.trace import Trace
from tests.autotune import examples

pytest.importorskip("torch")
COPY = """
def copy(x: f32[{n}, {m}], *, out: f32[{n}, {m}]):
    for i in range({n}):
        for j in range({m}):
            out[i, j] = x[i, j] + 1.0
"""


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
        found.append(TreeSample(tree_of(trace.func, {}), score))
    return found


def test_it_learns_what_a_tree_says():
    model = TreeGRU()
    test = nests(40, 2)
    roots = [s.root for s in test]
    assert not model.is_ready
    assert model.predict(roots) == [0.0] * 40
    model.fit(test[:1])
    assert not model.is_ready
    model.fit(nests(80, 1))
    assert rank_correlation(model.predict(roots), [s.score for s in test]) > 0.8
    assert model.predict([]) == []


def test_a_tree_holds_loops_stores_and_sizes():
    root = tree_of(examples.matmul(target=examples.OTHER).func, {})
    assert len(root.children) == 2
    assert len(root.numbers) == WIDTH
    (row,) = root.children[0].children
    assert [len(c.children) for c in row.children] == [0, 1]
    scale = examples.scale().func
    assert tree_of(scale, {"n": 5}) != tree_of(scale, {"n": 6})
    assert tree_of(scale, {"n": 0}).children[0].numbers[0] == 0
