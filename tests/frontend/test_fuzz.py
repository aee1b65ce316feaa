"""Damaged models are converted or refused, and nothing else ever comes out."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import helper

from dlc.core.errors import LimitError, ModelError, UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from tests.frontend import fuzz_import
from tests.frontend.mutate import mutate
from tests.frontend.node_suite import all_cases, as_array, frozen
from tests.frontend.test_convert import model

OPERATORS = (
    "Conv", "ConvTranspose", "MaxPool", "LSTM", "Resize", "Pad", "Slice", "Split", "Reshape",
    "Range", "Scan", "If", "Einsum", "Gather", "OneHot", "BatchNormalization",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_damaged_nodes_raise_nothing_but_errors_of_the_model(operator):
    rng = random.Random(operator)
    outcomes = {"converted": 0, "refused": 0}
    cases = [c for c in all_cases() if c.model.graph.node[0].op_type == operator]
    for _ in range(60):
        case = rng.choice(cases)
        names = (v.name for v in case.model.graph.input)
        given = dict(zip(names, map(as_array, case.data_sets[0][0]), strict=True))
        damaged = mutate(frozen(case.model, given, rng.choice((len(given), 1))), rng)
        try:
            import_model(load_model(damaged))
        except (ModelError, LimitError):
            outcomes["refused"] += 1
        else:
            outcomes["converted"] += 1
    assert min(outcomes.values()) > 0


@pytest.mark.slow
def test_damaged_files_raise_nothing_but_errors_of_the_model(tmp_path):
    assert fuzz_import.main(["--count", "300", "--keep", str(tmp_path)]) == 0


def test_sizes_computed_by_an_endless_formula_are_refused():
    nodes = [helper.make_node("Shape", ["x"], ["s0"])]
    for i in range(2000):
        nodes.append(helper.make_node("Add", [f"s{i}", "one"], [f"t{i}"]))
        nodes.append(helper.make_node("Div", [f"t{i}", "three"], [f"s{i + 1}"]))
    nodes.append(helper.make_node("Expand", ["x", "s2000"], ["y"]))
    constants = {"one": np.int64([1]), "three": np.int64([3])}
    with pytest.raises(UnsupportedModel, match="too long to follow"):
        import_model(load_model(model(nodes, {"x": ("n",)}, constants)))
