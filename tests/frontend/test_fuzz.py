"""Damaged models are converted or refused, and nothing else ever comes out."""

from __future__ import annotations

import random

import onnx.parser
import pytest

from dlc.core.errors import LimitError, ModelError, UserError
from dlc.frontend.onnx import import_model, load_model
from tests.frontend import fuzz_import
from tests.frontend.mutate import mutate
from tests.frontend.node_suite import all_cases, as_array, frozen

OPERATORS = (
    "Conv", "ConvTranspose", "MaxPool", "LSTM", "Resize", "Pad", "Slice", "Split", "Reshape",
    "Range", "Scan", "If", "Einsum", "Gather", "OneHot", "BatchNormalization",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_damaged_nodes_raise_nothing_but_errors_of_the_model(operator):
    rng = random.Random(operator)
    outcomes = {"converted": 0, "refused": 0}
    cases = [c for c in all_cases() if c.model.graph.node[0].op_type == operator]
    for _ in range(60):
        case = rng.choice(cases)
        names = (v.name for v in case.model.graph.input)
        given = dict(zip(names, map(as_array, case.data_sets[0][0]), strict=True))
        damaged = mutate(frozen(case.model, given, rng.choice((len(given), 1))), rng)
        try:
            import_model(load_model(damaged))
        except (ModelError, LimitError):
            outcomes["refused"] += 1
        else:
            outcomes["converted"] += 1
    assert min(outcomes.values()) > 0


DAMAGED = {
    "skips beyond any length": ("found", """
        (int64[6] x) => (float[2] found) {
            found = TfIdfVectorizer <max_gram_length = 2, max_skip_count = 9223372036854775807,
                min_gram_length = 2, mode = "TF", ngram_counts = [0, 0], ngram_indexes = [0, 1],
                pool_int64s = [2, 3, 5, 4]> (x)
        }"""),
    "skips beyond any number of kernels": ("max_skip_count = 64 of n elements", """
        (int64[n] x) => (float[2] y) {
            y = TfIdfVectorizer <max_gram_length = 2, max_skip_count = 64, min_gram_length = 2,
                mode = "TF", ngram_counts = [0, 0], ngram_indexes = [0, 1],
                pool_int64s = [2, 3, 5, 4]> (x)
        }"""),
    "counts beyond the pool": ("do not divide a pool", """
        (int64[6] x) => (float[2] y) {
            y = TfIdfVectorizer <max_gram_length = 2, max_skip_count = 0, min_gram_length = 2,
                mode = "TF", ngram_counts = [0, 7], ngram_indexes = [0, 1],
                pool_int64s = [2, 3, 5, 4]> (x)
        }"""),
    "half a gram": ("whole number of n-grams", """
        (int64[6] x) => (float[2] y) {
            y = TfIdfVectorizer <max_gram_length = 2, max_skip_count = 0, min_gram_length = 2,
                mode = "TF", ngram_counts = [0, 1], ngram_indexes = [0, 1],
                pool_int64s = [2, 3, 5, 4]> (x)
        }"""),
    "a negative column": ("ngram_indexes run from -1", """
        (int64[6] x) => (float[2] y) {
            y = TfIdfVectorizer <max_gram_length = 2, max_skip_count = 0, min_gram_length = 2,
                mode = "TF", ngram_counts = [0, 0], ngram_indexes = [0, -1],
                pool_int64s = [2, 3, 5, 4]> (x)
        }"""),
    "a window of fewer dimensions": ("kernel_shape of length 1 for", """
        (float[1, 1, 2, 2] x, int64[1, 1, 2, 2] i) => (float[a, b, c, d] y) {
            y = MaxUnpool <kernel_shape = [2]> (x, i)
        }"""),
    "a hundred dimensions": ("more than 32 dimensions", f"""
        (float[3] x) => (float y) <int64[100] s = {{{", ".join(["1"] * 99)}, 3}}> {{
            y = Reshape (x, s)
        }}"""),
    "a recurrent layer of texts": ("its input is", """
        (string[2, 1, 3] x, string[1, 8, 3] w, string[1, 8, 2] r) => (string[2, 1, 1, 2] y) {
            y = LSTM <hidden_size = 2> (x, w, r)
        }"""),
    "no element, but an endless size": ("would have the size 9223372036854775807", """
        (float[0] x) => (float[a, b] y) <int64[2] s = {9223372036854775807, 0}> {
            y = Reshape <allowzero = 1> (x, s)
        }"""),
    "the determinant of a list": ("no matrix", """
        (float[3] x) => (float y) { y = Det (x) }"""),
    "boxes of another rank": ("not of rank 3", """
        (float[6, 4] b, float[1, 1, 6] s, int64 m) => (int64[n, 3] y) {
            y = NonMaxSuppression (b, s, m)
        }"""),
    "more targets than fit": ("1099511627776 targets", """
        (float[3, 4] x) => (float[3, n] y) {
            y = ai.onnx.ml.TreeEnsemble <leaf_targetids = [0, 1], leaf_weights = float[2] {1, 2},
                n_targets = 1099511627776, nodes_falseleafs = [1], nodes_falsenodeids = [1],
                nodes_featureids = [0], nodes_modes = uint8[1] {0}, nodes_splits = float[1] {0.5},
                nodes_trueleafs = [1], nodes_truenodeids = [0], tree_roots = [0]> (x)
        }"""),
    "a table of scales": ("no list", """
        (float[1, 1, 3, 4] x, float[4, 1] s) => (float[a, b, c, d] y) {
            y = Resize <mode = "nearest"> (x, "", s)
        }"""),
    "sizes of other shapes": ("do not broadcast", """
        (float[a, b, c] x, float[a, b] y) => (int64[3] z) {
            s = Shape (x)
            t = Shape (y)
            z = Add (s, t)
        }"""),
    "an axis of two elements": ("axis: 2 elements, not one", """
        (float[3, 4] x, int64[2] axis) => (float[3, 4] y) { y = CumSum (x, axis) }"""),
}  # fmt: skip


_HEAD = '<ir_version: 8, opset_import: ["" : 18, "ai.onnx.ml" : 5]> agraph '


@pytest.mark.parametrize("name", DAMAGED)
def test_what_damage_once_broke_is_refused_or_converted(name):
    why, text = DAMAGED[name]
    proto = onnx.parser.parse_model(_HEAD + text)
    if why == "found":
        assert import_model(load_model(proto)).graph.outputs[0].name == why
        return
    with pytest.raises(UserError, match=why):
        import_model(load_model(proto))


@pytest.mark.slow
def test_damaged_files_raise_nothing_but_errors_of_the_model(tmp_path):
    assert fuzz_import.main(["--count", "300", "--keep", str(tmp_path)]) == 0
