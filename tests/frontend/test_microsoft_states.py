"""Operators of onnxruntime's own domain that carry a state, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from tests.frontend.test_microsoft import microsoft
from tests.frontend.test_microsoft_attention import check, proto_of, real

B, C, T = 2, 6, 5


@pytest.mark.parametrize("activation", ["none", "silu", "swish"])
@pytest.mark.parametrize("given", ["", "b", "p", "bp"])
def test_a_convolution_goes_on_from_a_state(activation, given):
    constants = {"w": real(C, 1, 4)}
    constants |= {"b": real(C)} if "b" in given else {}
    constants |= {"p": real(B, C, 3)} if "p" in given else {}
    inputs = ["x", "w", *("b" if "b" in given else [""]), *("p" if "p" in given else [])]
    node = microsoft("CausalConvWithState", inputs, ["y", "s"], activation=activation, ndim=1)
    check(node, real(B, C, T), constants)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("past", [False, True])
def test_linear_attention_goes_on_from_a_state(rule, heads, past):
    constants = {"k": real(B, T, heads * 8) / 4, "v": real(B, T, heads * 6)}
    constants |= {"p": real(B, heads, 8, 6)} if past else {}
    constants |= {"g": -np.abs(real(B, T, heads))} if "gated" in rule else {}
    constants |= {"b": real(B, T, heads) ** 2 / 9} if "delta" in rule else {}
    inputs = ["x", *(name if name in constants else "" for name in "kvpgb")]
    how = {"q_num_heads": 4, "kv_num_heads": heads, "update_rule": rule}
    check(microsoft("LinearAttention", inputs, ["y", "s"], **how), real(B, T, 32), constants)


@pytest.mark.parametrize(
    ("operator", "how", "reason"),
    [
        ("CausalConvWithState", {"dilation": 2}, "dilation = 2 is not handled"),
        ("CausalConvWithState", {"channels_last": 1}, "channels_last = 1 is not handled"),
        ("LinearAttention", {"q_num_heads": 2, "kv_num_heads": 4}, "q_num_heads = 2 below"),
    ],
)
def test_what_the_standard_operator_lacks_is_refused(operator, how, reason):
    constants = {"k": real(C, 1, 4), "v": real(C)}
    proto = proto_of(microsoft(operator, ["x", "k", "v"], **how), real(B, C, T), constants)
    with pytest.raises(UnsupportedModel, match=reason):
        import_model(load_model(proto))
