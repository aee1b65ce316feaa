"""Which files beside a model hold its weights: nobody may write over them."""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto

from dlc.frontend.onnx.load import read_proto
from dlc.frontend.onnx.messages import messages


def external_files(model: Path) -> set[Path]:
    """The files that tensors of a model name, whether they are there or not.

    Raises:
        ModelError: as `load_model`, of what is read without weights.
    """
    found: set[Path] = set()
    for message, _ in messages(read_proto(model)):
        if isinstance(message, TensorProto):
            keys = {entry.key: entry.value for entry in message.external_data}
            if location := keys.get("location"):
                found.add(model.parent / location)
    return found
