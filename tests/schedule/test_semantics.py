"""A schedule that is not refused never changes the result, whatever it is."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import dlc.schedule.primitives  # noqa: F401 - registers the primitives
from dlc.core.errors import ScheduleError
from dlc.core.types import DType
from dlc.schedule.edit import sites
from dlc.schedule.loop import For, accumulation, allocs, loops
from dlc.schedule.passes.hoist_guards import hoist_guards
from dlc.schedule.passes.simplify_indices import simplify_indices
from dlc.schedule.primitive import PRIMITIVES, Step, replay, steps_from_json, steps_to_json
from dlc.schedule.text import parse_func
from dlc.te.transform import free_vars, loads, walk
from tests.schedule.data import assert_same, parse
from tests.schedule.functions import FUNCTIONS, function

FACTORS = st.integers(1, 5)


class Choices:
    """Arguments for each primitive that have a chance, drawn from what a function has now."""

    def __init__(self, draw, func, number):
        self.draw, self.func, self.new = draw, func, f"w{number}"
        self.found = list(sites(func.body))
        self.locals = sorted(allocs(func.body))

    def one(self, options):
        """One of the options; the case is dropped where there is none."""
        options = list(options)
        assume(options)
        return self.draw(st.sampled_from(options))

    def loop(self):
        return self.one(sorted(loops(self.func.body)))

    def around(self, wanted):
        """A (buffer, loop around a store of it) for stores that are `wanted`."""
        return self.one(
            (s.store.buffer, f.var) for s in self.found if wanted(s.store) for f in s.loops
        )

    def scope(self):
        return self.draw(st.sampled_from(["local", "local", "register"]))

    def prefetch(self):
        wide = [p.name for p in self.func.inputs if p.type.dtype is DType.BF16]
        pairs = [(f.var, v) for f in loops(self.func.body).values() for v in loops(f.body)]
        level = self.draw(st.sampled_from([1, 2]))
        return (*self.one(pairs), self.one(wide), 0, self.draw(FACTORS), level)

    def prefetch_parts(self):
        loop, inside, buffer, _, ahead, level = self.prefetch()
        part = self.one([loop, inside])
        return loop, part, self.one([part, inside]), buffer, ahead, level

    def split(self):
        return self.loop(), self.draw(FACTORS), (f"{self.new}o", f"{self.new}i")

    def fuse(self):
        pairs = [
            (f.var, f.body.var) for f in loops(self.func.body).values() if isinstance(f.body, For)
        ]
        return (*self.one(pairs), self.new)

    def reorder(self):
        chain = [f.var for f in self.one(s.loops for s in self.found if len(s.loops) > 1)]
        some = self.draw(st.lists(st.sampled_from(chain), min_size=2, unique=True))
        return (tuple(some),)

    def partition(self):
        sizes = ["n // 3", "n // 2 * 2", "(n + 1) // 2"] if self.func.sizes else []
        at = self.draw(st.one_of(FACTORS, *map(st.just, sizes)))
        return self.loop(), at, f"_{self.new}"

    def tabulate(self):
        pairs = [
            (f.var, str(e))
            for s in self.found
            for x in loads(s.store.value)
            for i in x.index
            for e in walk(i)
            for f in s.loops
            if f.var in free_vars(e) and not loads(e)
        ]
        return (*self.one(pairs), self.new)

    def collapse(self):
        return ()

    def unroll(self):
        return (self.loop(),)

    vectorize = parallel = unroll

    def compute_inline(self):
        return (self.one(self.locals),)

    def compute_at(self):
        return self.one(
            (x.buffer, f.var)
            for s in self.found
            for x in loads(s.store.value)
            if x.buffer in self.locals and x.buffer != s.store.buffer
            for f in s.loops
        )

    def duplicate(self):
        return (*self.compute_at(), f"_{self.new}")

    def decompose_reduction(self):
        return self.around(lambda s: accumulation(s) is not None)

    def guard_sum(self):
        return (self.decompose_reduction()[0],)

    def rfactor(self):
        return (*self.decompose_reduction(), self.new)

    subtotal = rfactor

    def slide(self):
        sums = [s for s in self.found if accumulation(s.store) is not None]
        pairs = ((s.store.buffer, a.var, b.var) for s in sums for a in s.loops for b in s.loops)
        return (*self.one(p for p in pairs if p[1] != p[2]), self.new)

    def pad_einsum(self):
        return (*self.decompose_reduction(), self.draw(FACTORS))

    def reverse_compute_at(self):
        return self.around(lambda s: s.buffer in self.locals)

    def cache_write(self):
        return (*self.around(lambda s: True), self.new, self.scope())

    def cache_read(self):
        pair = self.one(
            (x.buffer, f.var) for s in self.found for x in loads(s.store.value) for f in s.loops
        )
        return (*pair, self.new, self.scope())

    def hand_on(self):
        return (*self.around(lambda s: s.buffer in self.locals), self.new, self.scope())

    def cache_load(self):
        buffer, names = self.one(
            (x.buffer, [f.var for f in s.loops][k:])
            for s in self.found
            for x in loads(s.store.value)
            for k in range(3)
        )
        return (buffer, tuple(self.draw(st.permutations(names))), self.new, self.scope())

    def transform_layout(self):
        name = self.one(self.locals)
        rank = allocs(self.func.body)[name].buffer.type.rank
        factors = tuple(self.draw(st.lists(FACTORS, min_size=rank, max_size=rank)))
        dims = list(range(rank + sum(f > 1 for f in factors)))
        return name, tuple(self.draw(st.permutations(dims))), factors

    def expand_alloc(self):
        found = loops(self.func.body)
        return self.one((b, v) for v, f in found.items() for b in sorted(allocs(f.body)))

    def sink_alloc(self):
        return (self.one(self.locals),)

    factor_out = sink_alloc

    def roll(self):
        pair = self.expand_alloc()
        rank = allocs(self.func.body)[pair[0]].buffer.type.rank
        return (*pair, self.draw(st.integers(0, rank)), self.draw(FACTORS))

    def defer(self):
        return (self.loop(),)

    once = defer

    def merge(self):
        return self.loop(), self.loop()

    def fission(self):
        return (self.loop(),)

    def store_in(self):
        return self.one(self.locals), self.one(b.name for b in self.func.outputs)

    def share(self):
        return self.loop(), self.loop()


CHOSEN = sorted(name for name in PRIMITIVES if hasattr(Choices, name))


# Those that make GPU launches: their results are compared on the emulator, tests/codegen.
LAUNCHES = {
    "attach", "bind", "cache_factor", "cooperate", "distribute", "distribute_digits",
    "drop_guards", "fuse_dims", "online_softmax",
    "pad_dim", "pipeline", "zero_summands",
}  # fmt: skip
# What changes how a nest is compiled, and none of its statements; "tensorize" needs an instruction:
# see their own tests.
OTHERS = {"annotate", "set_scope", "tensorize"}


def test_every_primitive_is_chosen():
    assert set(PRIMITIVES) - set(CHOSEN) - LAUNCHES == OTHERS


@st.composite
def a_step(draw, func, number):
    """Some step on what the function has now; it may well be illegal."""
    name = draw(st.sampled_from(CHOSEN))
    return name, getattr(Choices(draw, func, number), name)()


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_schedule_changes_the_result(name, data):
    plain = func = function(name)
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


GUARDED = """
    def f(n: size, m: f32[n], A: f32[n, 3, 4], *, s: f32[n]):
        for i in range(n):
            s[i] = 0.0
            for j in range(3):
                for k in range(4):
                    s[i] += (A[i, j, k] if m[i] < 1.0 else 0.0)
"""
SLACK = """
    def f(n: size, A: f32[n + 9], *, B: f32[n]):
        t = alloc(f32[n + 8], "local")
        for i in range(n + 8):
            t[i] = A[i] + A[i + 1]
        for j in range(n):
            B[j] = t[j] + t[j + 1]
"""
KEPT = """
    def f(n: size, A: f32[n, 2, 8], *, B: f32[8, n, 2]):
        for i in range(n):
            t = alloc(f32[2, 1, 8], "local")
            for j in range(2):
                for k in range(8):
                    t[j, 0, k] = A[i, j, k] + 1.0
            for y in range(2):
                for x in range(8):
                    B[x, i, y] = A[i, 1, 7] - t[y, 0, x]
"""


SCALED = """
    def f(A: f32[9, 4], *, B: f32[6, 2]):
        t = alloc(f32[9, 3], "local")
        for i in range(9):
            s = alloc(f32[4], "local")
            for k in range(4):
                s[k] = A[i, k] * 2.0
            for l in range(3):
                t[i, l] = s[l] + s[l + 1]
        for y in range(6):
            for x in range(2):
                B[y, x] = t[y, x] * t[y + 3, x]
"""
OWN = """
    def f(A: f32[9, 6], *, B: f32[4, 2]):
        t = alloc(f32[9, 6], "local")
        {}
        for y in range(4):
            for x in range(2):
                B[y, x] = t[y + 2, x + 2] * 3.0 + t[y + 3, x + 3]
"""
RUNNING = """for i in range(9):
            s = alloc(f32[1], "local")
            s[0] = 0.0
            for l in range(6):
                s[0] += A[i, l]
                t[i, l] = s[0]
"""
RUNNING_ROWS = """for p in range(1):
            s = alloc(f32[1], "local")
            s[0] = 0.0
            for i in range(9):
                s[0] += A[i, 0]
                for l in range(6):
                    t[i, l] = s[0] + A[i, l]
"""
FILLED = """for i in range(9):
            s = alloc(f32[6], "local")
            for l in range(6):
                s[l] = A[i, l]
                t[i, l] = 1.0
            for m in range(6):
                t[i, m] += s[5 - m]
"""
EDGES = """
    def f(A: f32[9, 3], *, B: f32[2, 5, 3]):
        for b in range(2):
            for y in range(5):
                t = alloc(f32[4, 3], "local")
                for i in range(4):
                    if 0 <= y * 2 + i - 1 and y * 2 + i - 1 < 9:
                        s = alloc(f32[3], "local")
                        for k in range(3):
                            s[k] = A[y * 2 + i - 1, k] * 2.0
                        for l in range(3):
                            t[i, l] = s[l] + 1.0
                for j in range(4):
                    for m in range(3):
                        if y * 2 + j < 1:
                            t[j, m] = 0.0
                        if 10 <= y * 2 + j:
                            t[j, m] = 3.0
                for x in range(3):
                    B[b, y, x] = t[0, x] * t[3, x] + t[1, 2 - x] - t[2, x]
"""


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (SCALED, Step("compute_at", ("t", "y"))),
        (SCALED, Step("compute_at", ("t", "y", (1, 3)))),
        (OWN.format(RUNNING), Step("compute_at", ("t", "y"))),
        (OWN.format(RUNNING_ROWS), Step("compute_at", ("t", "y"))),
        (OWN.format(FILLED), Step("compute_at", ("t", "y"))),
        (EDGES, Step("roll", ("t", "y", 0, 2))),
        (KEPT, Step("store_in", ("t", "B"))),
        (GUARDED, Step("guard_sum", ("s",))),
        (SLACK, Step("compute_at", ("t", "j", (4,)))),
        (SLACK, Step("compute_at", ("t", "j", (1,)))),
    ],
)
def test_a_step_of_a_special_form_changes_no_result(text, step):
    func = parse(text)
    moved = replay(func, [step])
    assert str(moved) != str(func)
    assert_same(func, moved, (0, 1, 2, 5))
