"""The committed digits network and its held-back images belong together."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import onnx
import pytest

DIGITS = Path(__file__).parents[2] / "examples" / "digits"


@pytest.fixture(scope="module")
def held_back():
    with np.load(DIGITS / "digits_test.npz") as data:
        return data["pixels"], data["labels"]


def test_the_network_recognises_images_it_never_saw(held_back):
    onnxruntime = pytest.importorskip("onnxruntime")
    pixels, labels = held_back
    session = onnxruntime.InferenceSession(DIGITS / "digits.onnx")
    (logits,) = session.run(None, {"image": pixels[:, None].astype(np.float32) / 16})
    assert (logits.argmax(1) == labels).mean() > 0.97


def test_the_raw_file_holds_the_same_images(held_back):
    pixels, labels = held_back
    raw = (DIGITS / "digits_test.bin").read_bytes()
    assert raw[:4] == b"DGT1"
    count, height, width = struct.unpack_from("<III", raw, 4)
    assert (count, height, width) == pixels.shape
    np.testing.assert_array_equal(np.frombuffer(raw, np.uint8, count, 16), labels)
    np.testing.assert_array_equal(np.frombuffer(raw, np.uint8, -1, 16 + count), pixels.ravel())


def test_the_model_has_a_symbolic_batch_and_opset_17():
    model = onnx.load(DIGITS / "digits.onnx")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert [entry.version for entry in model.opset_import] == [17]
    assert (DIGITS / "digits.onnx").stat().st_size < 300_000
