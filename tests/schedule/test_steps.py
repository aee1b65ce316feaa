"""A schedule is data: it saves, loads and replays; bad data is refused."""

import pytest

from dlc.core.errors import ScheduleError, UserError, VerifyError
from dlc.schedule.primitive import (
    PRIMITIVES,
    Step,
    primitive,
    replay,
    steps_from_json,
    steps_to_json,
)
from tests.schedule.functions import function

STEPS = (
    Step("split", ("x", 4, ("xo", "xi"))),
    Step("reorder", (("xo", "y", "xi"),)),
    Step("compute_at", ("s", "y")),
)


def test_steps_survive_json():
    assert steps_from_json(steps_to_json(STEPS)) == STEPS
    func = function("dense")
    assert replay(func, STEPS) == replay(func, steps_from_json(steps_to_json(STEPS)))


@pytest.mark.parametrize(
    "text", ["", "{}", "3", '["split"]', '[["split", 3]]', "[[3, []]]", '[["split", [], 1]]']
)
def test_text_that_is_no_schedule_is_refused(text):
    with pytest.raises(UserError, match="schedule"):
        steps_from_json(text)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (Step("explode", ()), "there is no such primitive"),
        (Step("split", ("x",)), "missing"),
        (Step("unroll", ("x", 1, 2)), "too many positional arguments"),
    ],
)
def test_a_step_that_fits_nothing_is_refused(step, reason):
    with pytest.raises(ScheduleError, match=reason) as caught:
        replay(function("dense"), [step])
    assert caught.value.fields["primitive"] == step.primitive


def test_what_a_primitive_returns_is_verified():
    def ruin(func):
        """Return something broken."""
        return type(func)(func.name, (), func.inputs, func.outputs, func.body)

    try:
        with pytest.raises(VerifyError, match="after ruin"):
            primitive(ruin)(function("dense"))
        with pytest.raises(AssertionError, match="declared twice"):
            primitive(ruin)
    finally:
        del PRIMITIVES["ruin"]
