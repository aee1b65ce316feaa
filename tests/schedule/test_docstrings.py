"""Every primitive's docstring is a test: Before, Call, After; and both sides give one result."""

import inspect
import re
import textwrap

import numpy as np
import pytest

import dlc.schedule.primitives  # noqa: F401 - registers the primitives
from dlc.schedule.interpret import run_func
from dlc.schedule.primitive import PRIMITIVES
from dlc.schedule.text import parse_func
from tests.schedule.data import inputs, run_alike


def example(fn) -> tuple[str, str, str]:
    doc = inspect.getdoc(fn)
    found = re.search(r"Before:\n(.*?)\nCall:\n(.*?)\nAfter:\n(.*?)\n\n", doc, re.DOTALL)
    assert found, f"{fn.__name__} has no example"
    before, call, after = found.groups()
    return textwrap.dedent(before).strip(), call.strip(), textwrap.dedent(after).strip()


def apply_example(name: str):
    before, call, after = example(PRIMITIVES[name])
    func = parse_func(before)
    result = eval(call, {name: lambda *args: PRIMITIVES[name](func, *args)})
    return func, result, after


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_the_docstring_example_holds(name):
    _, result, after = apply_example(name)
    assert str(result).strip() == after


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
@pytest.mark.parametrize("n", [0, 1, 2, 9, 33])
def test_the_docstring_example_keeps_the_result(name, n):
    func, result, _ = apply_example(name)
    sizes = dict.fromkeys(func.sizes, n)
    arrays = inputs(func, sizes)
    want, got = run_func(func, sizes, arrays), run_alike(result, func, sizes, arrays)
    for key in want:
        np.testing.assert_array_equal(got[key], want[key])


@pytest.mark.parametrize("name", sorted(PRIMITIVES))
def test_the_docstring_says_what_is_refused(name):
    assert "Raises:" in (inspect.getdoc(PRIMITIVES[name]) or "")
