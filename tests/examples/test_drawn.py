"""Layers of random sizes are models, and the same ones for a seed."""

from __future__ import annotations

import pytest
from onnx.shape_inference import infer_shapes

from benchmarks.operators.__main__ import model_of
from benchmarks.operators.drawn import KINDS, drawn


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_is_a_model(kind: str) -> None:
    texts = drawn(kind, seed=5, count=20)
    assert len(texts) == len(set(texts.values())) == 20
    assert texts == drawn(kind, seed=5, count=20) != drawn(kind, seed=6, count=20)
    for text in texts.values():
        model, feeds = model_of(text)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        inferred = infer_shapes(model, strict_mode=True, data_prop=True)
        sizes = inferred.graph.output[0].type.tensor_type.shape.dim
        assert all(size.dim_value > 0 for size in sizes)
        assert feeds
