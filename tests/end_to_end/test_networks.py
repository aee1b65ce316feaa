"""Small networks, compiled for this machine, give what onnxruntime gives, for all their sizes."""

from __future__ import annotations

import pickle

import numpy as np
import onnx
import pytest

import dlc
from tests.end_to_end.networks import NETWORKS


@pytest.fixture(scope="module")
def compiled():
    """Each network, compiled once."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = dlc.compile(NETWORKS[name].model())
        return made[name]

    return get


def onnxruntime_session(model):
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name, compiled):
    network = NETWORKS[name]
    model = network.model()
    onnx.checker.check_model(model)
    session, module = onnxruntime_session(model), compiled(name)
    for sizes in network.sizes:
        feeds = network.feeds(sizes)
        found = module.run(feeds)
        assert list(found) == [value.name for value in model.graph.output]
        for actual, expected in zip(found.values(), session.run(None, feeds), strict=True):
            assert actual.dtype == expected.dtype
            assert actual.shape == expected.shape
            if actual.dtype.kind != "f":
                np.testing.assert_array_equal(actual, expected)
                continue
            # Sums in another order are off by a share of their largest terms.
            atol = network.rtol * max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(actual, expected, rtol=network.rtol, atol=atol)


@pytest.mark.parametrize("name", ["perceptron", "convolutions", "attention"])
def test_no_batch_at_all_gives_nothing(name, compiled):
    network = NETWORKS[name]
    sizes = {**network.sizes[0], "batch": 0}
    for array in compiled(name).run(network.feeds(sizes)).values():
        assert array.shape[0] == 0


def test_an_image_that_is_too_small_is_refused(compiled):
    network = NETWORKS["images of any size"]
    feeds = network.feeds({"batch": 1, "height": 0, "width": 9})
    with pytest.raises(dlc.UserError, match="must hold"):
        compiled("images of any size").run(feeds)


def test_a_row_does_not_depend_on_the_batch_it_is_in(compiled):
    network = NETWORKS["convolutions"]
    feeds = network.feeds({"batch": 5})
    whole = compiled("convolutions").run(feeds)["y"]
    for row in range(5):
        alone = compiled("convolutions").run({"x": feeds["x"][row : row + 1]})["y"]
        np.testing.assert_allclose(alone[0], whole[row], rtol=1e-5, atol=1e-6)


def test_the_same_input_gives_the_same_bits(compiled):
    feeds = NETWORKS["attention"].feeds({"batch": 2, "seq": 9})
    first = compiled("attention").run(feeds)["y"]
    for _ in range(3):
        np.testing.assert_array_equal(compiled("attention").run(feeds)["y"], first)


def test_a_pickled_model_is_the_same_model(compiled):
    feeds = NETWORKS["lstm"].feeds({"batch": 2, "seq": 3})
    module = compiled("lstm")
    copy = pickle.loads(pickle.dumps(module))
    assert copy.inputs == module.inputs
    for name, array in module.run(feeds).items():
        np.testing.assert_array_equal(copy.run(feeds)[name], array)


def test_a_fixed_size_is_a_constant_of_the_artefact():
    network = NETWORKS["perceptron"]
    module = dlc.compile(network.model(), dims={"batch": 3})
    assert module.sizes == ()
    assert module.inputs[0].shape == (3, 13)
    general = dlc.compile(network.model())
    feeds = network.feeds({"batch": 3})
    np.testing.assert_allclose(module.run(feeds)["y"], general.run(feeds)["y"], rtol=1e-6)
    with pytest.raises(dlc.InputError, match="expected shape"):
        module.run(network.feeds({"batch": 2}))


def test_a_bounded_size_refuses_what_is_outside():
    network = NETWORKS["perceptron"]
    module = dlc.compile(network.model(), dims={"batch": (2, 4)})
    assert module.run(network.feeds({"batch": 4}))["y"].shape == (4, 5)
    for batch in (1, 5):
        with pytest.raises(dlc.InputError, match="batch"):
            module.run(network.feeds({"batch": batch}))
