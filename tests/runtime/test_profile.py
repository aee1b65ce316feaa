"""Times of single steps: from a compiled model, and from one that cannot tell."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import dlc
from dlc.core.errors import ArtifactError
from dlc.runtime.profile import Profile


def dense() -> bytes:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="dense"),
        helper.make_node("Relu", ["h"], ["y"], name="rectify"),
        helper.make_node("Softmax", ["y"], ["z"], name="shares", axis=-1),
    ]
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", s]) for n, s in _IO]
    w = numpy_helper.from_array(np.ones((5, 3), np.float32), "w")
    graph = helper.make_graph(nodes, "dense", shapes[:1], shapes[1:], [w])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


_IO = (("x", 5), ("y", 3), ("z", 3))


def test_each_step_says_what_it_does():
    found = dlc.compile(dense()).profile(sizes={"n": 7}, rounds=3)
    nodes = [name for step in found.steps for name in step.nodes]
    assert nodes == ["dense", "rectify", "shares"]
    first = found.steps[0]
    assert first.operations == 7 * 3 * (2 * 5 + 1)
    assert all(0 < step.time_ns < 1e9 for step in found.steps)
    assert found.time_ns == sum(step.time_ns for step in found.steps)


def test_profiling_computes_the_same_results():
    module = dlc.compile(dense())
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    bound = module._open().bind((x,), None)
    assert bound is not None
    steps = bound.profile()
    assert [step[0] for step in steps] == list(range(len(steps)))
    np.testing.assert_array_equal(bound.outputs[0], [[10.0] * 3, [35.0] * 3])


def test_the_turns_of_a_loop_are_one_step():
    runs = [[[0, 5, 1, 2], [1, 10, 3, 4], [1, 20, 3, 4]], [[0, 7, 1, 2], [1, 50, 3, 4]]]
    names = [{"kernel": "a", "nodes": ["n"]}]
    found = Profile.of(runs, names).steps
    assert [(s.kernel, s.nodes, s.time_ns) for s in found] == [
        ("a", ("n",), 6.0),
        ("step 1", (), 40.0),
    ]
    assert found[1].operations == 3
    assert Profile.of([[[0, 4, 8, 12]]], None).steps[0].gflops == 2.0
    assert Profile.of([[[0, 4, 8, 12]]], None).steps[0].gbytes_per_s == 3.0


def test_a_model_that_cannot_tell_is_refused(model):
    with pytest.raises(ArtifactError, match="without a report of its steps"):
        model.profile(sizes={"batch": 2})
