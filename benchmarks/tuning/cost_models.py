"""Which cost model orders candidates best: boosted trees by order or by value, or the TreeGRU?

Run: python -m benchmarks.tuning.cost_models RECORDED [--most 120] [--seeds 3] [--json OUT]

RECORDED is what `record` made; nothing is measured here. Of each task up to `--most` candidates are
drawn. A model learns from some of a task (`own 32`, `own 64`), or from up to 32 of each other task
(`transfer`), and orders the task's other candidates. `order` is the rank correlation with what was
measured; `best_of_8` the speed-up of the fastest of the eight it puts first, relative to the
fastest of all; `seconds` the processor time to fit. Medians over the tasks. `chance` orders by
chance. With `--json`, a task that has its row is done.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from benchmarks.tuning.common import parser
from benchmarks.tuning.figures import Figures
from dlc.autotune.cost_model import CostModel, Sample, XGBoostModel, rank_correlation, sample_of
from dlc.autotune.log import TuningLog
from dlc.autotune.loop_tree import print_tree, tree_of
from dlc.autotune.tree_gru import TreeGRU
from dlc.core.errors import DlcError
from dlc.schedule.pipeline import tidy
from dlc.schedule.primitive import replay

MEDIANS = "medians"  # the row of all tasks
COLUMNS = ("order", "best_of_8", "seconds")
_TOP = 8
_FROM_EACH = 32


Found = dict[str, list[tuple[float, ...]]]  # by lesson and model, the values of `COLUMNS`

# Learns from the first candidates, and scores the second.
Model = Callable[[Sequence[Sample], Sequence[Sample], int], tuple[list[float], float]]


def main() -> None:
    """Run the comparison."""
    arguments = parser(__doc__)
    arguments.add_argument("recorded", type=Path)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--most", type=int, default=120)
    given = arguments.parse_args()
    tasks = {p.stem: _candidates(p, given.most) for p in sorted(given.recorded.glob("*.db"))}
    print({name: len(found) for name, found in tasks.items()}, flush=True)
    figures = Figures(given.json, {"seeds": given.seeds, "most": given.most})
    found: Found = defaultdict(list)
    for name in tasks:
        row = figures.get(name, partial(_one, name, tasks, given.seeds))
        for lesson, triples in row["rows"].items():
            found[lesson] += map(tuple, triples)
        print(name, flush=True)
    medians = figures.rows[MEDIANS] = {
        lesson: {
            column: round(median(values), 3)
            for column, values in zip(COLUMNS, zip(*rows, strict=True), strict=True)
        }
        for lesson, rows in sorted(found.items())
    }
    figures.write()
    for name, row in medians.items():
        print(f"{name:30}", "  ".join(f"{k} {v:.3f}" for k, v in row.items()))


def _one(name: str, tasks: Mapping[str, Sequence[Sample]], seeds: int) -> dict[str, Found]:
    """What each model makes of one task, taught by some of it or by the other tasks."""
    own = tasks[name]
    others = [c for other, all_of in tasks.items() if other != name for c in _some(all_of)]
    found: Found = defaultdict(list)
    for seed in range(seeds):
        mixed = Random(seed).sample(own, len(own))
        for size in (32, 64):
            if len(mixed) >= size + 4 * _TOP:
                _compare(f"own {size}", mixed[:size], mixed[size:], seed, found)
    if own and others:
        _compare("transfer", others, own, 0, found)
    return {"rows": found}


def _candidates(path: Path, most: int) -> list[Sample]:
    """Candidates of a task that ran, each nest once: as it was measured last."""
    with TuningLog(path, read_only=True) as log:
        task = next(iter(log.tasks()))
        last = {t.nest: t for t in log.trials() if t.times_ns}
    found = []
    for trial in Random(0).sample(list(last.values()), min(most, len(last))):
        sample = sample_of(trial)
        if sample is None:
            continue
        try:
            func = tidy(replay(task.func, trial.plan))
        except DlcError:
            continue  # of another version of the compiler
        tree = print_tree(tree_of(func, dict(task.sizes)))
        found.append(replace(sample, seen=replace(sample.seen, tree=tree)))
    return found


def _some(candidates: Sequence[Sample]) -> list[Sample]:
    return Random(0).sample(list(candidates), min(_FROM_EACH, len(candidates)))


def _compare(
    lesson: str,
    known: Sequence[Sample],
    unknown: Sequence[Sample],
    seed: int,
    found: Found,
) -> None:
    truth = [s.score for s in unknown]
    for name, model in MODELS.items():
        scores, seconds = model(known, unknown, seed)
        first = sorted(range(len(truth)), key=lambda n: -scores[n])[:_TOP]
        best: float = 2.0 ** (max(truth[n] for n in first) - max(truth))
        found[f"{lesson}, {name}"].append((rank_correlation(scores, truth), best, seconds))


def _learned(make: Callable[[int], CostModel]) -> Model:
    def run(
        known: Sequence[Sample], unknown: Sequence[Sample], seed: int
    ) -> tuple[list[float], float]:
        model = make(seed)
        began = time.process_time()
        model.fit(known)
        seconds = time.process_time() - began
        return model.predict([s.seen for s in unknown]), seconds

    return run


def _chance(
    known: Sequence[Sample], unknown: Sequence[Sample], seed: int
) -> tuple[list[float], float]:
    random = Random(seed)
    return [random.random() for _ in unknown], 0.0


MODELS: dict[str, Model] = {
    "XGBoost, regression": _learned(lambda seed: XGBoostModel(seed=seed)),
    "XGBoost, rank": _learned(lambda seed: XGBoostModel("rank", seed=seed)),
    "TreeGRU": _learned(lambda seed: TreeGRU(seed=seed)),
    "chance": _chance,
}


if __name__ == "__main__":
    main()
