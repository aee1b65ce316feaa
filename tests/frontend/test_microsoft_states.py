"""Operators of onnxruntime's own domain that carry a state, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.errors import UnsupportedModel
from dlc.frontend.onnx import import_model, load_model
from tests.frontend.test_microsoft import microsoft
from tests.frontend.test_microsoft_attention import check, proto_of, real

B, C, T = 2, 6, 5
RNG = np.random.default_rng(8)


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
@pytest.mark.parametrize("heads", [4, 2, 8])
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
        ("GatedRMSNorm", {"activation": "relu"}, "activation = 'relu'"),
        ("CausalConvWithState", {"dilation": 2}, "dilation = 2 is not handled"),
        ("CausalConvWithState", {"state_window": 2}, "state_window = 2 is not handled"),
        ("LinearAttention", {"state_window": 2}, "state_window = 2 is not handled"),
        ("CausalConvWithState", {"channels_last": 1}, "channels_last = 1 is not handled"),
        ("LinearAttention", {"q_num_heads": 4, "kv_num_heads": 6}, "4 heads of queries do"),
    ],
)
def test_what_the_standard_operator_lacks_is_refused(operator, how, reason):
    constants = {"k": real(C, 1, 4), "v": real(C)}
    proto = proto_of(microsoft(operator, ["x", "k", "v"], **how), real(B, C, T), constants)
    with pytest.raises(UnsupportedModel, match=reason):
        import_model(load_model(proto))


@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
@pytest.mark.parametrize("heads", [1, 3])
def test_a_norm_of_each_head_times_a_gate(activation, heads):
    constants = {"w": real(8), "g": real(B, T, heads * 8)}
    node = microsoft("GatedRMSNorm", ["x", "w", "g"], activation=activation, epsilon=1e-3)
    check(node, real(B, T, heads * 8), constants)


@pytest.mark.parametrize("both", [False, True])
def test_gates_of_linear_attention(both):
    constants = {"d": real(4), "s": -(real(4) ** 2)} | ({"b": real(B, T, 4)} if both else {})
    inputs, outputs = ["x", *constants], ["y", "z"] if both else ["y"]
    check(microsoft("LinearAttentionGate", inputs, outputs), real(B, T, 4), constants)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("sections", [[4, 2, 2], [3, 3, 2], [8, 0, 0], [0, 3, 5]])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("interleaved", [0, 1])
def test_tokens_of_three_positions_are_turned(layout, sections, rank, interleaved):
    """16 of 24 elements, or all of them, of each of two heads."""
    size = 24 if rank == 4 else 16
    angles = real(9, 8)
    constants = {"p": RNG.integers(0, 9, (3, B, T)), "c": np.cos(angles), "s": np.sin(angles)}
    how = {"mrope_section": sections, "mrope_layout": layout, "interleaved": interleaved}
    how |= {"num_heads": 2, "rotary_embedding_dim": 16 if rank == 4 else 0}
    node = microsoft("MRotaryEmbedding", ["x", "p", "c", "s"], **how)
    check(node, real(B, 2, T, size) if rank == 4 else real(B, T, 2 * size), constants)
