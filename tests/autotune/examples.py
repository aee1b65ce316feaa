"""Small tasks and rows for the tests of the tuner."""

import numpy as np

from dlc.autotune.record import Choice, Status, Trial
from dlc.autotune.task import Task, make_task
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.schedule.text import parse_func

MATMUL = """
def matmul(a: f32[{m}, {k}], b: f32[{k}, {n}], *, out: f32[{m}, {n}]):
    acc = alloc(f32[{m}, {n}], "local")
    for i in range({m}):
        for j in range({n}):
            acc[i, j] = 0.0
            for p in range({k}):
                acc[i, j] += a[i, p] * b[p, j]
    for y in range({m}):
        for x in range({n}):
            out[y, x] = max(acc[y, x], 0.0)
"""
SOFTMAX = """
def softmax(a: f32[{m}, {n}], *, out: f32[{m}, {n}]):
    top = alloc(f32[{m}], "local")
    for i in range({m}):
        top[i] = -inf
        for j in range({n}):
            top[i] = max(top[i], a[i, j])
    total = alloc(f32[{m}], "local")
    for r in range({m}):
        total[r] = 0.0
        for c in range({n}):
            total[r] += exp(a[r, c] - top[r])
    for y in range({m}):
        for x in range({n}):
            out[y, x] = exp(a[y, x] - top[y]) / total[y]
"""
SCALE = """
def scale(n: size, a: f32[n], *, out: f32[n]):
    for i in range(n):
        out[i] = a[i] * 3.0
"""
OTHER = Target(features=frozenset({"sse2"}))


def native() -> Target:
    return parse_target("native")


def matmul(m: int = 13, n: int = 37, k: int = 11, target: Target | None = None) -> Task:
    return make_task(parse_func(MATMUL.format(m=m, n=n, k=k)), target or native())


def softmax(m: int = 5, n: int = 43, target: Target | None = None) -> Task:
    return make_task(parse_func(SOFTMAX.format(m=m, n=n)), target or native())


def scale(n: int = 100, target: Target | None = None) -> Task:
    return make_task(parse_func(SCALE), target or native(), {"n": n})


def trial(task: Task, number: int = 0, status: Status = Status.OK) -> Trial:
    rng = np.random.default_rng(number)
    return Trial(
        task=task.key,
        family="contract",
        knobs=(("rows", number), ("steps", 4)),
        steps='[["split", ["i", 4, ["io", "ii"]]]]',
        nest=f"nest{number}",
        status=status,
        times_ns=tuple(int(t) for t in 100 + rng.integers(0, 50, 5)),
        anchor_ns=(200, 210, 220),
        features=(1.0, 2.5),
        versions=(("dlc", "0.1.0"),),
    )


def choice(task: Task, speedup: float = 1.5) -> Choice:
    return Choice(task.key, "[]", "nest", "default", speedup, 1.1, 5.0, (("dlc", "0.1.0"),))
