"""The ResNet-18 example writes a model that others accept."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import onnx
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "resnet18.py"


@pytest.fixture(scope="module")
def resnet18():
    return runpy.run_path(str(EXAMPLE))["resnet18"]


def test_it_has_the_layers_of_the_paper(resnet18):
    model = resnet18(image_size=32)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds.count("Conv") == kinds.count("BatchNormalization") == 20
    assert kinds.count("Add") == 8
    learned = [w for w in model.graph.initializer if not w.name.endswith((".mean", ".var"))]
    # Source: torchvision's resnet18 has 11,689,512 parameters.
    assert sum(int(np.prod(weight.dims)) for weight in learned) == 11_689_512


def test_the_same_seed_gives_the_same_model(resnet18):
    first, second, other = (resnet18(image_size=32, seed=seed) for seed in (1, 1, 2))
    assert first.SerializeToString() == second.SerializeToString()
    assert first.SerializeToString() != other.SerializeToString()


def test_a_word_makes_the_batch_symbolic(resnet18):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = resnet18(batch="batch", image_size=32)
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    x = np.random.default_rng(0).standard_normal((3, 3, 32, 32)).astype(np.float32)
    (logits,) = session.run(None, {"data": x})
    assert logits.shape == (3, 1000)
    assert 0.1 < logits.std() < 100
