"""Models that compute with texts, compiled."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from onnx import helper, parser

import dlc
from dlc.core.errors import InputError, UnsupportedModel, UserError
from dlc.core.types import DType

HEAD = '<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 4]>\nmain '


def texts(*values: str) -> np.ndarray:
    return np.array([*values, None], np.object_)[:-1]


@pytest.fixture(scope="module", params=[True, False], ids=["optimised", "plain"])
def module(request):
    text = """(string[n] x, string[1] y, bool[n] c, float[m] f)
        => (string[n] both, bool[n] same, string[a,b] parts, int64[n] k, string[n] chosen,
            string[n] upper, bool[n] ends, float[m] back, string[2] fixed, string[n] looped)
        <int64 three = {3}> {
        both = StringConcat(x, y)
        same = Equal(x, y)
        parts, k = StringSplit<delimiter=","> (both)
        chosen = Where(c, x, y)
        upper = StringNormalizer<case_change_action="UPPER">(both)
        ends = RegexFullMatch<pattern="(é|[a-z])*q">(both)
        t = Cast<to=8>(f)
        back = Cast<to=1>(t)
        i = Constant<value_strings=["ü", "b"]>()
        fixed = Identity(i)
        looped = Loop(three, , x) <body = b (int64 i, bool go, string[n] old)
            => (bool on, string[n] new) { on = Identity(go) new = StringConcat(old, y) }>
    }"""
    return dlc.compile(parser.parse_model(HEAD + text), optimize=request.param)


@pytest.mark.parametrize("given", [("a,b", "éa", "q", ""), ("q",), ()])
def test_texts_are_joined_compared_split_chosen_and_matched(module, given):
    x = texts(*given)
    c = np.array([i % 2 == 0 for i in range(len(given))], np.bool_)
    f = np.array([0, -0.1, 1e20, 3, 1e-7, np.inf, -np.inf], np.float32)
    found = module(x, texts("q"), c, f)
    joined = [a + "q" for a in given]
    assert found.both.tolist() == joined
    assert found.same.tolist() == [a == "q" for a in given]
    fields = [a.split(",") for a in joined]
    width = max(map(len, fields), default=0)
    assert found.parts.tolist() == [p + [""] * (width - len(p)) for p in fields]
    assert found.parts.shape == (len(given), width)
    assert found.k.tolist() == list(map(len, fields))
    assert found.chosen.tolist() == [a if flag else "q" for a, flag in zip(given, c, strict=True)]
    assert found.upper.tolist() == [a.upper() for a in joined]
    assert found.ends.tolist() == ["," not in a for a in given]
    np.testing.assert_array_equal(found.back, f)
    assert found.fixed.tolist() == ["ü", "b"]
    assert found.looped.tolist() == [a + "qqq" for a in given]
    assert module.inputs[0].dtype is DType.STR


def test_texts_come_as_arrays_of_any_kind(module):
    c, f, one = np.ones(2, np.bool_), np.zeros(0, np.float32), texts("q")
    for given in (["a", "b"], np.array(["a", "b"]), np.array([b"a", b"b"]), texts("a", "b")):
        assert module(given, one, c, f).both.tolist() == ["aq", "bq"]
    with pytest.raises(InputError, match="expected texts, got float64"):
        module(np.zeros(2), one, c, f)
    with pytest.raises(InputError, match="expected texts, got a int"):
        module(np.array([1, 2], np.object_), one, c, f)


def test_results_stay_when_the_model_runs_again(module):
    c, f, one = np.ones(1, np.bool_), np.zeros(0, np.float32), texts("q")
    first = module(texts("one"), one, c, f)
    module(texts("two"), one, c, f)
    assert first.both.tolist() == ["oneq"]
    with pytest.raises(UserError, match="cannot be bound"):
        module.bind(dict(zip("xycf", (texts("a"), one, c, f), strict=True)))


def test_bytes_that_are_no_characters_pass_through(module):
    broken = b"a\xff\xc3".decode("utf-8", "surrogateescape")
    found = module(texts(broken), texts("q"), np.ones(1, np.bool_), np.zeros(0, np.float32))
    assert found.upper.tolist() == [broken.replace("a", "A") + "Q"]


def run(text: str, *feeds: np.ndarray) -> Any:
    return dlc.compile(parser.parse_model(HEAD + text))(*feeds)


def test_numbers_are_read_and_written():
    text = """(string[n] x, double[m] d, int64[m] i)
        => (double[n] read, int64[1] whole, string[m] a, string[m] b) <int64 one = {1}> {
        read = Cast<to=11>(x)
        k = Constant<value_strings=["-17"]>()
        whole = Cast<to=7>(k)
        a = Cast<to=8>(d)
        b = Cast<to=8>(i)
    }"""
    model = dlc.compile(parser.parse_model(HEAD + text))
    x = texts("3.5", " +1e-5 ", "INF", "-inf", "NaN", "1e999", "-1e-999", "0")
    d = np.array([0.1, 1e16, -2.0, 1e-5, np.nan, 5e-324])
    i = np.array([0, -1, 2**62, -(2**63), 5, 6])
    found = model(x, d, i)
    wanted = [3.5, 1e-5, np.inf, -np.inf, np.nan, np.inf, -0.0, 0]
    np.testing.assert_array_equal(found.read, wanted)
    assert found.whole.tolist() == [-17]
    assert found.a.tolist() == [str(v) for v in d.tolist()]
    assert found.b.tolist() == [str(v) for v in i.tolist()]
    for bad in ("", "1x", "0x1", "+-1", "one"):
        with pytest.raises(UserError, match="is to be read as a number"):
            model(texts(bad), d, i)


def test_stopwords_go_and_an_empty_text_stays():
    text = """(string[n] x) => (string[a] y, string[b] z) {
        y = StringNormalizer<case_change_action="LOWER", stopwords=["ÄB", "c"]>(x)
        z = StringNormalizer<is_case_sensitive=1, stopwords=["c"]>(x)
    }"""
    model = dlc.compile(parser.parse_model(HEAD + text))
    y, z = model(texts("äb", "C", "D", "c", "Ää"))
    assert (y.tolist(), z.tolist()) == (["d", "ää"], ["äb", "C", "D", "Ää"])
    y, z = model(texts("äB", "c"))
    assert (y.tolist(), z.tolist()) == ([""], ["äB"])
    y, z = model(texts())
    assert (y.tolist(), z.tolist()) == ([""], [""])


def test_text_is_split_at_white_space():
    text = """(string[n] x) => (string[a,b] y, int64[n] k, string[c,d] z, int64[n] j) {
        y, k = StringSplit(x)
        z, j = StringSplit<maxsplit=1>(x)
    }"""
    model = dlc.compile(parser.parse_model(HEAD + text))
    given = ("  a b\tc ", "", "   ", "x y  z ")
    found = model(texts(*given))
    for at, row in enumerate(given):
        assert found.y[at, : found.k[at]].tolist() == row.split()
        assert found.j[at] == min(len(row.split()), 2)
    assert found.z.tolist() == [["a", "b\tc"], ["", ""], ["", ""], ["x", "y  z"]]


TOKENIZERS = {
    "words": ('tokenexp="[a-zA-Z0-9_]+"', lambda t: re.findall("[a-zA-Z0-9_]+", t)),
    "longest": ('tokenexp="a|ab|abcd"', lambda t: re.findall("abcd|ab|a", t)),
    "edges": (r'tokenexp="\\b.[^ ]*\\b"', lambda t: re.findall(r"\b.(?:[^ ]*\b|\b)", t, re.A)),
    "cuts": ('separators=[" ", ",+"]', lambda t: re.split(" |,+", t)),
    "in turn": ('separators=["ab", "b"]', lambda t: re.split("ab|b", t)),
    "characters": ('separators=[""]', list),
}


def run_tokenizer(given: list[str], setting: str, least: int, mark: int, pad: str) -> np.ndarray:
    domains = ', "com.microsoft": 1]>'
    text = f"""(string[n] x) => (string[n,d] y) {{
        y = com.microsoft.Tokenizer
            <mark={mark}, mincharnum={least}, pad_value="{pad}", {setting}>(x)
    }}"""
    model = dlc.compile(parser.parse_model(HEAD.replace("]>", domains) + text))
    return model(texts(*given))


@pytest.mark.parametrize("mark", [0, 1])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokens_are_found(name, mark):
    setting, oracle = TOKENIZERS[name]
    given = ["abcd ab,,a x", "", "é b-é, ü_1", "b", "no tokens of all this but abcdabc"]
    for least in (1,) if name == "characters" else (1, 2):
        found = run_tokenizer(given, setting, least, mark, "#")
        tokens = [[t for t in oracle(text) if len(t) >= least] for text in given]
        if mark:
            tokens = [["\x02", *row, "\x03"] for row in tokens]
        width = max(map(len, tokens))
        assert found.tolist() == [row + ["#"] * (width - len(row)) for row in tokens]


def test_where_no_text_has_a_token_there_are_no_columns():
    assert run_tokenizer([" ", ""], 'separators=[" "]', 1, 1, "#").shape == (2, 0)
    assert run_tokenizer([], 'separators=[" "]', 1, 0, "").shape == (0, 0)
    assert run_tokenizer(["a b", "c"], 'separators=[" "]', 1, 0, "").tolist() == [
        ["a", "b"],
        ["c", ""],
    ]


@pytest.mark.parametrize(
    ("setting", "least", "why"),
    [
        ('tokenexp="(a"', 1, "one is not handled"),
        ('separators=["a", "(?=b)"]', 1, "one is not handled"),
        ('tokenexp=""', 1, "separators or a tokenexp"),
        ('separators=[""]', 2, "mincharnum = 2"),
        ('separators=[" "]', 0, "mincharnum = 0"),
    ],
)
def test_a_tokenizer_that_cannot_be_is_refused(setting, least, why):
    with pytest.raises(UnsupportedModel) as caught:
        run_tokenizer(["a"], setting, least, 0, "#")
    assert why in str(caught.value)


def test_labels_and_categories_may_be_texts():
    text = """(string[n] x, float[n,2] f)
        => (int64[n] code, string[n] word, float[n,2] hot, string[n] label, float[n,3] s) {
        code = ai.onnx.ml.LabelEncoder<keys_strings=["a", "b", "a"], values_int64s=[1, 2, 3]>(x)
        word = ai.onnx.ml.CategoryMapper<cats_int64s=[3, 2], cats_strings=["u", "v"]>(code)
        hot = ai.onnx.ml.OneHotEncoder<cats_strings=["b", "zz"]>(x)
        label, s = ai.onnx.ml.LinearClassifier<classlabels_strings=["p", "q", "r"],
            coefficients=[1.0, 0.0, 0.0, 1.0, -1.0, -1.0], intercepts=[0.0, 0.0, 0.0]>(f)
    }"""
    f = np.array([[1, 0], [0, 1], [-1, -1]], np.float32)
    found = run(text, texts("a", "b", "c"), f)
    assert found.code.tolist() == [3, 2, -1]  # the last of a key that is given twice
    assert found.word.tolist() == ["u", "v", "_Unused"]
    np.testing.assert_array_equal(found.hot, [[0, 0], [1, 0], [0, 0]])
    assert found.label.tolist() == ["p", "q", "r"]


def test_the_values_of_a_one_hot_tensor_may_be_texts():
    text = """(int64[n] i, string[2] v) => (string[3,n] y) {
        d = Constant<value_int=3>()
        y = OneHot<axis=0>(i, d, v)
    }"""
    found = run(text, np.array([2, -3, 5, 0]), texts("", "on"))
    on = np.array([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(found, np.where(on, "on", ""))


def test_n_grams_of_texts_are_counted():
    node = helper.make_node(
        "TfIdfVectorizer", ["x"], ["y"], mode="TF", min_gram_length=1, max_gram_length=2,
        max_skip_count=0, ngram_counts=[0, 1], ngram_indexes=[0, 1], pool_strings=["a", "b", "c"],
    )  # fmt: skip
    model = parser.parse_model(HEAD + "(string[1,5] x) => (float[1,2] y) { y = Identity(x) }")
    model.graph.node[0].CopyFrom(node)
    (y,) = dlc.compile(model)(np.array([["b", "c", "a", "b", "c"]], np.object_))
    np.testing.assert_array_equal(y, [1, 2])


def test_n_grams_of_an_open_number_of_texts_are_counted():
    node = helper.make_node(
        "TfIdfVectorizer", ["x"], ["y"], mode="TF", min_gram_length=1, max_gram_length=3,
        max_skip_count=1, ngram_counts=[0, 2, 6], ngram_indexes=[0, 1, 2, 3, 4],
        pool_strings=["a", "b", "a", "b", "b", "b", "a", "b", "b"],
    )  # fmt: skip
    grams = [("a",), ("b",), ("a", "b"), ("b", "b"), ("a", "b", "b")]
    model = parser.parse_model(HEAD + "(string[m,n] x) => (float[m,5] y) { y = Identity(x) }")
    model.graph.node[0].CopyFrom(node)
    compiled = dlc.compile(model)
    for words in ("", "a", "ab", "abb", "c", "babbab", "aabbbcab", "ab"):
        rows = np.array([[*words], [*words[::-1]]], np.object_).reshape(2, len(words))
        wanted = [
            [
                sum(
                    tuple(row[start : start + (len(gram) - 1) * step + 1 : step]) == gram
                    for step in ((1, 2) if len(gram) > 1 else (1,))
                    for start in range(len(row))
                )
                for gram in grams
            ]
            for row in rows.tolist()
        ]
        np.testing.assert_array_equal(compiled(rows), wanted, err_msg=words)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("y = Add(x, x)", "not handled for texts"),
        ("y = StringConcat(x, n)", "no tensor of texts"),
        (r'y = RegexFullMatch<pattern="(a)\\1">(x)', "groupref"),
        ('y = StringNormalizer<case_change_action="TITLE">(x)', "TITLE"),
        ("y = ai.onnx.ml.LabelEncoder<keys_int64s=[1], values_int64s=[2]>(x)", "keys of type i64"),
        ("y = ai.onnx.ml.OneHotEncoder<cats_int64s=[1]>(x)", "no categories"),
    ],
)
def test_what_no_text_can_be_is_refused(body, why):
    with pytest.raises(UnsupportedModel, match=why):
        run(f"(string[3] x, int64[3] n) => (float[3] y) {{ {body} }}")
