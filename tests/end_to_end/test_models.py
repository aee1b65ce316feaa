"""Whole models: those of the onnx package, and those in the folder `pytest --models DIR` names.

DIR holds models as `NAME.onnx` or `NAME/model.onnx`; where `inputs.npz` lies beside the latter, the
model is run on that.
"""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test import loader

import dlc

LIGHT = os.path.join(loader.DATA_DIR, "light")
SMALL = ("squeezenet", "shufflenet")
LARGE = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "zfnet512")


def with_weights(path: str) -> onnx.ModelProto:
    """The model with random weights: the files have the same number everywhere, to be small."""
    model = onnx.load(path)
    constants = {w.name: w for w in model.graph.initializer}
    rng = np.random.default_rng(0)
    for node in list(model.graph.node):
        if node.op_type != "ConstantOfShape":
            continue
        shape = numpy_helper.to_array(constants[node.input[0]])
        fan_in = max(1, int(np.prod(shape[1:]))) if len(shape) > 1 else 100
        weights = rng.standard_normal(shape) * np.sqrt(2 / fan_in)
        if len(shape) == 1:  # biases, and the numbers of a normalisation, which are positive
            weights = np.abs(weights) + 0.5
        model.graph.node.remove(node)
        array = weights.astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
    return model


def check(model, module, inputs=None):
    pytest.importorskip("onnxruntime")
    report = dlc.verify(model, module, inputs, against=["onnxruntime"], rtol=1e-3, atol=1e-4)
    assert report.trials == 1, report.notes
    report.check()


def check_light(name):
    model = with_weights(os.path.join(LIGHT, f"light_{name}.onnx"))
    module = dlc.compile(model)
    check(model, module)
    (spec,) = module.inputs
    output = module(np.ones([int(n) for n in spec.shape], np.float32))
    assert np.ptp(output) > 0, "the test would say little about a constant"


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_small_model(name):
    check_light(name)


@pytest.mark.slow
def test_large_model(large):
    check_light(large)


@pytest.mark.slow
def test_model_of_the_folder(path):
    given = path.with_name("inputs.npz")
    inputs = None
    if path.name == "model.onnx" and given.exists():
        with np.load(given) as arrays:
            inputs = dict(arrays)
    try:
        module = dlc.compile(path)
    except dlc.UnsupportedModel as error:
        pytest.skip(str(error))
    check(path, module, inputs)


def pytest_generate_tests(metafunc):
    folder = metafunc.config.getoption("--models")
    if "large" in metafunc.fixturenames:
        metafunc.parametrize("large", LARGE if folder else ())
    if "path" in metafunc.fixturenames:
        found = [*folder.glob("*.onnx"), *folder.glob("*/model.onnx")] if folder else []
        names = [str(path.relative_to(folder)) for path in found]
        metafunc.parametrize("path", found, ids=names)
