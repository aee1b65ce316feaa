"""Sketches compute what the nest means, on every kind of nest, and refuse the rest."""

from random import Random

import numpy as np
import pytest

from dlc.autotune.design import families
from dlc.autotune.sketch import SKETCHES
from dlc.autotune.task import make_task
from dlc.codegen.llvm.emit import emit_func
from dlc.core.errors import ScheduleError
from dlc.schedule.interpret import run_func
from dlc.schedule.pipeline import tidy
from dlc.schedule.primitive import replay, steps_from_json, steps_to_json
from dlc.schedule.rules import prepare
from dlc.schedule.text import parse_func
from dlc.schedule.trace import Memory, Trace
from tests.autotune import examples
from tests.schedule.data import run_alike

TARGET = examples.Target(features=frozenset({"avx2", "fma"}), cores=2, thread_operations=0)
TURN = """
def turn(x: f32[6, 40], *, y: f32[40, 6]):
    for i in range(40):
        for j in range(6):
            y[i, j] = max(x[j, i], 0.0)
"""
SUM_ALL = """
def sum_all(x: f32[12, 35], *, y: f32[1]):
    t = alloc(f32[1], "local")
    for i in range(1):
        t[i] = 0.0
        for j in range(12):
            for k in range(35):
                t[i] += x[j, k]
    for e in range(1):
        y[e] = t[e] * 2.0
"""
WINDOW = """
def window(x: f32[9, 14, 16], *, y: f32[7, 12, 16]):
    t = alloc(f32[7, 12, 16], "local")
    for i in range(7):
        for j in range(12):
            for k in range(16):
                t[i, j, k] = -inf
                for u in range(3):
                    for v in range(3):
                        t[i, j, k] = max(t[i, j, k], x[i + u, j + v, k])
    for a in range(7):
        for b in range(12):
            for c in range(16):
                y[a, b, c] = t[a, b, c] + 1.0
"""
FUNCS = {
    "matmul": examples.matmul(6, 20, 12, TARGET).func,
    "scale": examples.scale().func,
    "turn": parse_func(TURN),
    "sum_all": parse_func(SUM_ALL),
    "window": parse_func(WINDOW),
}


ONE_ELEMENT = ("sketch.tiles", "sum_all")
"""A sketch of what has loops over its elements, and what has none."""


def prepared(func):
    trace = Trace(func)
    prepare(trace, TARGET)
    return trace


@pytest.mark.parametrize("name", sorted(FUNCS))
@pytest.mark.parametrize("sketch", sorted(SKETCHES))
def test_a_sketch_keeps_the_meaning(name, sketch):
    func = FUNCS[name]
    space = SKETCHES[sketch].space(prepared(func).func, TARGET)
    if space is None:
        is_of_sums = sketch != "sketch.elements"
        assert is_of_sums == (name in ("scale", "turn")) or (sketch, name) == ONE_ELEMENT
        return
    rng = np.random.default_rng(1)
    sizes = {"n": 19} if func.sizes else {}
    shapes = {b.name: tuple(19 if func.sizes else d for d in _shape(b)) for b in func.inputs}
    arrays = {n: rng.integers(-4, 5, s).astype(np.float32) for n, s in shapes.items()}
    expected = run_func(func, sizes, arrays)
    points = list(space.points())
    done = 0
    for point in Random(3).sample(points, min(20, len(points))):
        try:
            trace = SKETCHES[sketch].schedule(prepared(func), TARGET, point)
        except ScheduleError:  # a part of one summand; the count below bounds how many
            continue
        again = replay(func, steps_from_json(steps_to_json(trace.steps)))
        assert again == trace.func
        emit_func(tidy(trace.func), TARGET)  # or it could not be compiled
        for out, array in run_alike(tidy(trace.func), func, sizes, arrays).items():
            np.testing.assert_array_equal(array, expected[out], err_msg=str(point))
        done += 1
    assert done >= min(4, len(points))


def _shape(buffer):
    return buffer.type.static_shape if buffer.type.is_static else buffer.type.shape


def test_sketches_stand_in_where_rules_offer_little():
    wide = families(make_task(FUNCS["matmul"], TARGET))
    assert wide[0].name == "rule.contract"
    assert not any(f.name.startswith("sketch") for f in wide)
    turned = families(make_task(FUNCS["turn"], TARGET))
    assert [f.name for f in turned] == ["sketch.elements"]
    pooled = families(make_task(FUNCS["window"], TARGET))
    assert {"rule.window", "sketch.tiles"} <= {f.name for f in pooled}


def test_steps_are_taken_once():
    memory = Memory(2)
    func = FUNCS["scale"]
    first, second = Trace(func, memory=memory), Trace(func, memory=memory)
    for trace in (first, second):
        trace.do("split", "i", 4, ("io", "ii"))
    assert first.func is second.func
    assert first.steps == second.steps
    other = second.copy()
    other.do("vectorize", "ii")
    second.do("unroll", "ii")
    assert other.func != second.func
    third = Trace(func, memory=memory)  # forgotten by now: two steps are remembered
    third.do("split", "i", 4, ("io", "ii"))
    assert third.func == first.func
    assert third.func is not first.func


def test_a_sketch_refuses_what_it_cannot_know():
    for sketch in ("sketch.tiles", "sketch.partial_sums"):
        with pytest.raises(ScheduleError, match="no reduction"):
            SKETCHES[sketch].schedule(prepared(FUNCS["turn"]), TARGET, {})
    # A part of 32 summands holds two, which are not four.
    long = parse_func(examples.MATMUL.format(m=4, n=6, k=32))
    knobs = {"parts": 16, "lanes": 4, "threads": 1}
    with pytest.raises(ScheduleError, match="2 summands are no whole number of 4 lanes"):
        SKETCHES["sketch.partial_sums"].schedule(prepared(long), TARGET, knobs)
