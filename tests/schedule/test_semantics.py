"""A schedule that is not refused never changes the result, whatever it is."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dlc.core.errors import ScheduleError
from dlc.core.types import DType
from dlc.schedule.loop import allocs, loops
from dlc.schedule.passes.hoist_guards import hoist_guards
from dlc.schedule.passes.simplify_indices import simplify_indices
from dlc.schedule.primitive import Step, replay, steps_from_json, steps_to_json
from dlc.schedule.text import parse_func
from tests.schedule.data import assert_same
from tests.schedule.functions import FUNCTIONS, function

FACTORS = st.integers(1, 5)


@st.composite
def a_step(draw, func, number):
    """Some step on what the function has now; it may well be illegal."""
    loop = st.sampled_from(sorted(loops(func.body)))
    buffers = sorted(allocs(func.body)) + [b.name for b in func.params]
    buffer = st.sampled_from(buffers)
    local = st.sampled_from(sorted(allocs(func.body)) or buffers)
    new = f"w{number}"
    scope = st.sampled_from(["local", "local", "register"])
    match draw(st.sampled_from(PRIMITIVES)):
        case "split":
            return "split", (draw(loop), draw(FACTORS), (f"{new}o", f"{new}i"))
        case "fuse":
            return "fuse", (draw(loop), draw(loop), new)
        case "reorder":
            return "reorder", (tuple(draw(st.lists(loop, min_size=2, max_size=3, unique=True))),)
        case "partition":
            at = draw(st.one_of(FACTORS, st.sampled_from(["n // 3", "n // 2 * 2", "(n + 1) // 2"])))
            return "partition", (draw(loop), at, f"_{new}")
        case "unroll" | "vectorize" | "parallel" as name:
            return name, (draw(loop),)
        case "compute_inline":
            return "compute_inline", (draw(local),)
        case "compute_at" | "decompose_reduction" | "reverse_compute_at" as name:
            return name, (draw(buffer if name[0] != "c" else local), draw(loop))
        case "duplicate":
            return "duplicate", (draw(local), draw(loop), f"_{new}")
        case "cache_read" | "cache_write" as name:
            return name, (draw(buffer), draw(loop), new, draw(scope))
        case "rfactor":
            return "rfactor", (draw(buffer), draw(loop), new)
        case "pad_einsum":
            return "pad_einsum", (draw(buffer), draw(loop), draw(FACTORS))
        case "transform_layout":
            name = draw(local)
            rank = len(_type(func, name).shape)
            factors = tuple(draw(st.lists(FACTORS, min_size=rank, max_size=rank)))
            dims = list(range(rank + sum(f > 1 for f in factors)))
            return "transform_layout", (name, tuple(draw(st.permutations(dims))), factors)
    raise AssertionError


PRIMITIVES = [
    "split", "split", "fuse", "reorder", "partition", "unroll", "vectorize", "parallel",
    "compute_inline", "compute_at", "compute_at", "decompose_reduction", "reverse_compute_at",
    "duplicate", "cache_read", "cache_write", "rfactor", "pad_einsum", "transform_layout",
]  # fmt: skip


def _type(func, name):
    found = allocs(func.body)
    if name in found:
        return found[name].buffer.type
    return next(b.type for b in func.params if b.name == name)


def index_inputs_fit(func):
    """Tests draw small integers; an index into a table of 6 rows is always in range."""
    return all(b.type.dtype is not DType.INDEX for b in func.params)


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_schedule_changes_the_result(name, data):
    plain = func = function(name)
    assert index_inputs_fit(func)
    steps = []
    for number in range(data.draw(st.integers(1, 8))):
        if not loops(func.body):
            break
        step = Step(*data.draw(a_step(func, number)))
        try:
            func = replay(func, [step])
        except ScheduleError:
            continue
        steps.append(step)
    assert parse_func(str(func)) == func
    assert replay(plain, steps_from_json(steps_to_json(steps))) == func
    tidy = hoist_guards(simplify_indices(func))
    values = (0, 1, 2, 5, 7)
    assert_same(plain, func, values)
    assert_same(plain, tidy, values, seed=1)
