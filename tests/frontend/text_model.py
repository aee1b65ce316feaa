"""Models written as text, and what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import parser

from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import graph_of


def model(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]>\nmain {text}')


def results(proto: onnx.ModelProto, *arrays: np.ndarray, **options: Any) -> list[np.ndarray]:
    """What the graph of a model computes; `options` are those of its import."""
    graph = graph_of(proto, **options)
    feeds = dict(zip((v.name for v in graph.inputs), arrays, strict=True))
    return list(evaluate(graph, feeds).values())


def run(text: str, *arrays: np.ndarray, **options: Any) -> list[np.ndarray]:
    return results(model(text), *arrays, **options)
