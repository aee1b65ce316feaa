"""Crops, tokens and hashes of onnxruntime's own domain, as machine code, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, parser

import dlc
from dlc.core.errors import UnsupportedModel, UserError
from dlc.frontend.onnx import import_model, load_model
from dlc.graph.evaluate import evaluate
from tests.frontend.onnx_model import model
from tests.frontend.test_microsoft import microsoft

IMAGE = ((np.arange(252, dtype=np.float32) * 11) % 17 - 8).reshape(3, 2, 6, 7)
REGIONS = np.array(
    [[0.25, 0.125, 0.75, 1], [0, 0, 1, 1], [-0.25, 0.25, 0.5, 1.5], [0.75, 1, 0.25, 0], [0.5] * 4],
    np.float32,
)
IMAGES = np.array([0, 2, 1, 2, 0], np.int32)
MODEL = '<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]> m '


def check(proto, feeds, module=None) -> None:
    """Machine code and the reference give what onnxruntime gives."""
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    (found,) = (module or dlc.compile(proto)).run(feeds).values()
    (exact,) = evaluate(import_model(load_model(proto)).graph, feeds).values()
    np.testing.assert_allclose(exact, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    assert found.dtype == want.dtype


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 5), (1, 4), (2, 1)])
def test_crops_of_images(size, mode):
    proto = parser.parse_model(
        f"""{MODEL} (float[n,2,h,w] x, float[r,4] b, int32[r] i) => (float[r,2,p,q] y) {{
            s = Constant<value = int32[2] {{{size[0]}, {size[1]}}}>()
            y = com.microsoft.CropAndResize<mode="{mode}", extrapolation_value=2.5>(x, b, i, s)
        }}"""
    )
    module = dlc.compile(proto)
    for count in (5, 1, 0):
        feeds = {"x": IMAGE, "b": REGIONS[:count], "i": IMAGES[:count]}
        check(proto, feeds, module)
    feeds = {"x": IMAGE, "b": REGIONS, "i": IMAGES + 1}
    with pytest.raises(UserError, match=r"'y' .*outside of size n"):
        module.run(feeds)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ngrams_that_must_not_repeat(size):
    proto = parser.parse_model(
        f"""{MODEL} (int64[b,l] t, float[b,4] s) => (float[b,4] y) {{
            y = com.microsoft.NGramRepeatBlock<ngram_size={size}>(t, s)
        }}"""
    )
    module = dlc.compile(proto)
    tokens = np.array(
        [[1, 2, 1, 3, 0, 1, 2, 1], [2, 2, 2, 2, 2, 2, 2, 2], [0, 1, 2, 3, 0, 1, 2, 0]]
    )
    scores = np.arange(12, dtype=np.float32).reshape(3, 4)
    for length in (8, 3, 2, 1):
        check(proto, {"t": tokens[:, -length:], "s": scores}, module)
    with pytest.raises(UserError, match=r"'y' .*lies outside of size 4"):
        module.run({"t": tokens + 3, "s": scores})


@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
@pytest.mark.parametrize("positive", [0, 1])
def test_hashes(dtype, positive):
    keys = np.array([0, 1, 77777, 2**31 - 1, -1, -(2**31)]).astype(dtype)
    proto = model([microsoft("MurmurHash3", ["x"], positive=positive, seed=7)], {"x": (6,)})
    proto.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(keys.dtype)
    kind = TensorProto.UINT32 if positive else TensorProto.INT32
    proto.graph.output[0].type.tensor_type.elem_type = kind
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    check(proto, {"x": keys})


@pytest.mark.parametrize(
    ("node", "why"),
    [(microsoft("MurmurHash3", ["x"]), "of type f32"),
     (microsoft("NGramRepeatBlock", ["x", "x"], ngram_size=0), "n-grams of 0"),
     (microsoft("CropAndResize", ["x", "x", "x", "x"], mode="cubic"), "mode = 'cubic'"),
     (microsoft("CropAndResize", ["x", "x", "x", "c"]), "crops of")],
)  # fmt: skip
def test_what_is_not_handled_is_refused(node, why):
    proto = model([node], {"x": (2, 3)}, {"c": np.array([2, 3], np.int32)})
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(UnsupportedModel, match=why):
        import_model(load_model(proto))
