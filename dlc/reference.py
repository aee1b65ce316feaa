"""What a model is by its operators' definitions: the oracle that others are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dlc.verify_precision import BITS, round_factor

if TYPE_CHECKING:
    from dlc.frontend.onnx.load import Model

Array = np.ndarray[Any, Any]
Engine = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""Outputs by name, of inputs by name."""


def reference(model: Model, *, precision: str = "highest") -> Engine:
    """The model by its operators' definitions in float64, as a function of its inputs.

    With less than the highest precision, the factors of products are rounded to its bits.
    Sizes that an artefact refuses are refused here, too.

    Raises:
        ModelError: the model cannot be read or holds something not supported.
    """
    from dlc.frontend.onnx import import_model, load_model
    from dlc.graph.conditions import check_sizes
    from dlc.graph.evaluate import bind_sizes, evaluate

    imported = import_model(load_model(model))
    graph, interface = imported.graph, imported.interface

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        arrays = zip(interface.inputs, graph.inputs, strict=True)
        named = {value.name: feeds[name] for name, value in arrays}
        check_sizes(graph, bind_sizes(graph, named))
        few = (lambda a: round_factor(a, precision)) if precision in BITS else None
        found = evaluate(graph, named, round_factor=few)
        results = zip(interface.outputs, graph.outputs, strict=True)
        return {name: found[value.name] for name, value in results}

    return run
