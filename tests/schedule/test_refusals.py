"""Each refusal of each primitive has a case, beside this file, and says why."""

import re

import pytest

import dlc.schedule.primitives  # noqa: F401 - registers the primitives
from dlc.core.errors import ScheduleError
from dlc.schedule.primitive import PRIMITIVES
from tests.schedule.data import parse
from tests.schedule.refusals_gpu import GPU
from tests.schedule.refusals_loops import LOOPS
from tests.schedule.refusals_memory import MEMORY
from tests.schedule.refusals_stages import STAGES
from tests.schedule.refusals_sums import SUMS
from tests.schedule.refused import COPY, TWO

CASES = [*LOOPS, *STAGES, *MEMORY, *SUMS, *GPU]


@pytest.mark.parametrize(
    ("name", "args", "text", "reason"),
    CASES,
    ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)],
)
def test_a_refusal_says_why(name, args, text, reason):
    func = parse(text)
    with pytest.raises(ScheduleError, match=re.escape(reason)) as caught:
        PRIMITIVES[name](func, *args)
    assert caught.value.fields["primitive"] == name


def test_every_primitive_is_refused_at_least_twice():
    counts = {name: sum(c[0] == name for c in CASES) for name in PRIMITIVES}
    assert all(n >= 2 for n in counts.values()), counts


def test_a_hint_lists_what_there_is():
    with pytest.raises(ScheduleError) as caught:
        PRIMITIVES["split"](parse(COPY), "q", 2, ("a", "b"))
    assert caught.value.hint == "the loops are i, j"
    with pytest.raises(ScheduleError) as caught:
        PRIMITIVES["compute_inline"](parse(TWO), "z")
    assert caught.value.hint == "the intermediates are t"
