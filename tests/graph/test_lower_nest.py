"""Operators that say their own loops become functions under the names of their group."""

from __future__ import annotations

import re

import numpy as np
import pytest

from dlc.codegen.cuda.emit import why_not_printable
from dlc.core.errors import InternalError
from dlc.core.target import Target
from dlc.graph.lower import lower_group
from dlc.graph.ops.order import SortOrder
from dlc.graph.text import parse_graph
from dlc.schedule.interpret import run_func
from dlc.schedule.pipeline import optimize
from dlc.schedule.rules import rule_for, schedule_func
from dlc.te import tensor as te
from dlc.te.types import TensorType

SORT = "def main(n: size, x: u8[3, n]):\n    y: i64[3, n] = sort_order(x, k=n)\n    return y\n"
KEYS = np.array([[3, 1, 3, 0, 1], [9, 8, 7, 6, 5], [0, 0, 0, 0, 0]], np.uint8)


@pytest.mark.parametrize("name", ["n", "r", "i", "counts", "local", "at0", "size_0", "register"])
def test_a_size_may_be_called_as_a_loop_or_a_buffer_is(name):
    graph = parse_graph(re.sub(r"\bn\b", name, SORT))
    func = lower_group(graph, "kernel")
    assert func.sizes == (name,)
    found = run_func(func, {name: 5}, {"in0": KEYS})["out"]
    np.testing.assert_array_equal(found, np.argsort(KEYS, axis=1, kind="stable"))


def test_rows_run_on_threads_unless_they_are_surely_few():
    few = lower_group(parse_graph(SORT.replace("n: size, ", "").replace("n]", "4]")
                                  .replace("k=n", "k=4")), "kernel")  # fmt: skip
    assert "parallel" not in str(few)
    assert "for r in parallel(3)" in str(lower_group(parse_graph(SORT), "kernel"))
    one = lower_group(parse_graph(SORT.replace("[3, n]", "[1, n]")), "kernel")
    assert "parallel" not in str(one)


def test_what_is_scheduled_stays_as_it_is():
    func = lower_group(parse_graph(SORT), "kernel")
    assert schedule_func(func, Target(), {}).steps == []
    assert rule_for(func, Target()) is None
    found = run_func(optimize(func, Target()), {"n": 5}, {"in0": KEYS})["out"]
    np.testing.assert_array_equal(found, np.argsort(KEYS, axis=1, kind="stable"))


def test_what_decides_between_the_smallest_reads_candidates_not_the_row():
    graph = "def main(x: u32[2, 900]):\n    y: i64[2, K] = smallest(x, k=K)\n    return y\n"
    for k, searched in ((3, "keys["), (300, "in0[")):  # many of a row leave no bound to its others
        text = str(lower_group(parse_graph(graph.replace("K", str(k))), "kernel"))
        trials = [line for line in text.split("\n") if "< bound[1]" in line and "_lanes" in line]
        assert trials
        assert all(searched in line for line in trials)


def test_no_gpu_runs_steps_in_order():
    assert "steps" in why_not_printable(lower_group(parse_graph(SORT), "kernel"))


def test_such_an_operator_has_no_formula_and_stands_alone():
    with pytest.raises(InternalError, match="not a formula"):
        SortOrder(k=2).compute(te.placeholder("x", TensorType((2, 2))))
    two = SORT.replace("return y", "z: i64[3, n] = neg(y)\n    return z")
    with pytest.raises(InternalError, match="stands alone"):
        lower_group(parse_graph(two), "kernel")
