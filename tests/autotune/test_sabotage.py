"""A session on this machine, some of whose candidates were replaced by others that do harm."""

from dataclasses import replace

import pytest

from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.log import TuningLog
from dlc.autotune.runners import open_machines
from dlc.autotune.session import Options, Weighted
from dlc.autotune.trial_program import compile_candidate, make_artefact
from dlc.autotune.tuner import Tuner
from dlc.schedule.text import parse_func
from tests.autotune import examples

BODY = """
def bad(a: f32[13, 11], b: f32[11, 37], *, out: f32[13, 37]):
    for i in range(13):
        for j in range(37):
            {}
"""
BAD = {
    1: ("crash", "out[i, j + 1000000000000] = a[i, 0] * b[0, j]"),
    2: ("slow", "for k in range(10**15):\n                out[i, j] = a[i, 0] * b[0, j]"),
    3: ("wrong", "out[i, j] = a[i, 0] * b[0, j] + 1.0"),
    9: ("memory", ""),
}
GREEDY = """
def bad(a: f32[13, 11], b: f32[11, 37], *, out: f32[13, 37]):
    big = alloc(f32[13, 1000000000], "local")
    for i in range(13):
        big[i, 0] = a[i, 0]
    for y in range(13):
        for x in range(37):
            out[y, x] = big[y, 0] * b[0, x]
"""


class Saboteur:
    """An executor that measures other artefacts than it was asked to, by their order."""

    def __init__(self, executor, task):
        self.executor, self.task = executor, task
        self.slots = executor.slots
        self.numbers = {}

    def run(self, jobs):
        return self.executor.run([self.replaced(job) for job in jobs])

    def replaced(self, job):
        if not job.data["default_ns"]:  # no candidate of the search
            return job
        number = self.numbers.setdefault(job.blobs[0], len(self.numbers) + 1)
        return replace(job, blobs=(self.bad(BAD[number][1]),)) if number in BAD else job

    def bad(self, line):
        func = parse_func(BODY.format(line.replace("10**15", str(10**15))) if line else GREEDY)
        return make_artefact(self.task, compile_candidate(func, self.task.target))

    def close(self):
        self.executor.close()


@pytest.fixture
def machines():
    opened = open_machines()
    yield opened
    opened.close()


@pytest.mark.slow  # one of them never ends
def test_harmful_candidates_are_recorded_and_the_search_goes_on(tmp_path, machines):
    task = examples.matmul()
    machines = replace(machines, measure=Saboteur(machines.measure, task))
    options = Options(Budget(trials=14), search="random", method=Method(rounds=3))
    with TuningLog(tmp_path / "a.db") as log:
        tuner = Tuner([Weighted(task)], log, machines, options)
        outcome = tuner.run()
        trials = list(log.trials())
    assert len(trials) == 14
    harmful = [t for t in trials if t.status not in ("ok", "invalid")]
    assert sorted(t.status for t in harmful) == sorted(status for status, _ in BAD.values())
    assert tuner.failures["crash"] == tuner.failures["wrong"] == 1
    assert sum(t.status == "ok" for t in trials[-4:]) == 4
    steps = {t.steps for t in harmful}
    assert not steps & {choice.steps for choice in outcome.choices.values()}
